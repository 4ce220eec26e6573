"""Named sets of options, ``--rpo.preset``; a flag given by hand always wins (spec section 5 and its preamble).

- ``paper``: every literal choice of the RPO paper at once, for reproduction.
- ``grpo`` (DeepSeekMath, section 4.1): group-normalized advantages, clip 0.2, every sequence weighs the same, KL as a
  loss with the k3 estimator.
- ``raft`` (RAFT, arXiv 2304.06767; with ratios and clipping as in arXiv 2504.11343): no baseline at all, so that right
  samples alone are learned from, those of groups that agree, too; no KL.
- ``dapo`` (DAPO, section 3): clip 0.2/0.28, token mean, no KL, dynamic sampling, soft overlong penalty.
"""

RPO_PAPER: dict[str, object] = {
    "rpo.init.mode": "bulk",
    "rpo.init.max_tries": 1,
    "rpo.replay.share": 0.0,
    "rpo.cut.rule": "uniform",
    "rpo.cut.max": "ratio:0.5",  # its accuracy table; the timing tables have fixed:300, fixed:500 and fixed:800
    "rpo.cut.scope": "group",
    "rpo.cut.fresh_share": 0.0,
    "rpo.budget.rule": "factor:1.0",  # the reference code's max_tokens = m
    "rpo.shaping.alpha": 0.01,
    "rpo.shaping.min": 0.5,
    "rpo.shaping.max": 1.0,
    "rpo.shaping.scope": "all",
    "rpo.shaping.reference": "group",
    "rpo.prefix_loss.mode": "include",
    "rpo.update.rule": "epsilon_greedy",
    "rpo.update.epsilon": 0.1,
    "rpo.update.admit": "any",
    "rpo.update.on_all_wrong": "keep",
}

GRPO: dict[str, object] = {
    "algo.advantage.estimator": "group_norm",
    "actor.eps_clip_low_high": [0.2, 0.2],
    "actor.loss_agg_mode": "seq-mean-token-mean",
    "algo.kl.use_loss": True,
    "algo.kl.estimator": "k3",
    "rpo.advantage.baseline": "none",
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
    "rpo.advantage.baseline": "none",
    "reward.overlong_penalty_factor": 1.0,  # reward.overlong_buffer_len depends on the run: see expand
}

PRESETS: dict[str, dict[str, object]] = {"paper": RPO_PAPER, "grpo": GRPO, "raft": RAFT, "dapo": DAPO}


def dapo_overlong_buffer(max_new_tokens: int) -> int:
    """The last 20 % of the longest answer, where the penalty grows from 0 to 1 (DAPO, section 3.4: 4096 of 20480)."""
    return max(1, max_new_tokens // 5)


def expand(names: str | None, given: set[str], max_new_tokens: int) -> dict[str, object]:
    """The options that the presets set: comma separated names, applied left to right, later ones win.

    ``given`` are the option names set by hand, which are never included. ``max_new_tokens`` is the run's longest
    answer. Raises ValueError for an unknown name.
    """
    options: dict[str, object] = {}
    for name in (part.strip() for part in names.split(",")) if names else ():
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
        options |= PRESETS[name]
        if name == "dapo":
            options["reward.overlong_buffer_len"] = dapo_overlong_buffer(max_new_tokens)
    return {option: value for option, value in options.items() if option not in given}
