"""Named sets of OpenRLHF's options, ``--rpo.preset``; an option given on the command line always wins.

- ``grpo`` (DeepSeekMath, section 4.1): group-normalized advantages, clip 0.2, equal weight for every sequence, KL as a
  loss with the k3 estimator.
- ``raft`` (RAFT, arXiv 2304.06767; with ratios and clipping as in arXiv 2504.11343): no baseline, so only right samples
  are learned from, including those of all-right groups; no KL.
- ``dapo`` (DAPO, section 3): clip 0.2/0.28, token mean, no KL, dynamic sampling, soft overlong penalty.

The paper's literal choices are a method: ``--rpo.method paper``.
"""

from collections.abc import Mapping

from openrlhf_rpo.errors import UsageError

GRPO: dict[str, object] = {
    "algo.advantage.estimator": "group_norm",
    "actor.eps_clip_low_high": [0.2, 0.2],
    "actor.loss_agg_mode": "seq-mean-token-mean",
    "algo.kl.use_loss": True,
    "algo.kl.estimator": "k3",
    "rpo.advantage.baseline": "estimator",
}

RAFT: dict[str, object] = {
    "algo.advantage.estimator": "reinforce",
    "algo.kl.init_coef": 0,
    "rpo.advantage.baseline": "zero",
}

DAPO: dict[str, object] = {
    "algo.advantage.estimator": "group_norm",
    "actor.eps_clip_low_high": [0.2, 0.28],
    "actor.loss_agg_mode": "token-mean",
    "algo.kl.init_coef": 0,
    "algo.dynamic_filtering_enable": True,
    "rpo.advantage.baseline": "estimator",
    "reward.overlong_penalty_factor": 1.0,  # reward.overlong_buffer_len depends on the run: see preset
}

PRESETS: dict[str, dict[str, object]] = {"grpo": GRPO, "raft": RAFT, "dapo": DAPO}


def dapo_overlong_buffer(max_new_tokens: int) -> int:
    """The last 20 % of the longest answer, over which the penalty grows from 0 to 1 (DAPO, section 3.4: 4096 of 20480)."""
    return max(1, max_new_tokens // 5)


def preset(name: str, max_new_tokens: int) -> dict[str, object]:
    """The options that a preset sets; ``max_new_tokens`` is the run's longest answer. Raises UsageError."""
    if name not in PRESETS:
        raise UsageError(f"--rpo.preset: unknown preset {name!r}; known: {', '.join(PRESETS)}")
    if name == "dapo":
        return DAPO | {"reward.overlong_buffer_len": dapo_overlong_buffer(max_new_tokens)}
    return PRESETS[name]


def expand(sources: Mapping[str, Mapping[str, object]], given: set[str]) -> dict[str, object]:
    """Merge what presets and a method set (``sources``: name -> its options), except the options ``given`` by hand.

    Raises UsageError if two sources set an option to different values.
    """
    options: dict[str, object] = {}
    setter: dict[str, str] = {}
    for who, values in sources.items():
        for option, value in values.items():
            if option in given:
                continue
            if option in options and options[option] != value:
                raise UsageError(
                    f"{setter[option]} and {who} contradict each other: --{option} is {options[option]} in one and {value} "
                    f"in the other. Give one of the two, or --{option} by hand"
                )
            options[option], setter[option] = value, who
    return options
