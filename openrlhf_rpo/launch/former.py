"""Former options and their replacements, on the command line and in the caches of old runs.

A cut rule, an update rule, a loss on the prefix and a baseline used to be combined freely; now each method fixes them.
"""

import json
from collections.abc import Mapping

from openrlhf_rpo.errors import UsageError

_EXAMPLES = "examples/methods"
_RULES = {
    "uniform": "--rpo.method rpo",
    "uncertain": "--rpo.method rpo --rpo.cut.at uncertain",
    "verify": "--rpo.method verify",
    "bare": "--rpo.method off",
    "adaptive": f"--rpo.method {_EXAMPLES}/adaptive.py:Adaptive",
    "tree": f"--rpo.method {_EXAMPLES}/tree.py:Tree",
    "failure": f"--rpo.method {_EXAMPLES}/failure.py:Failure",
    "pivot": f"--rpo.method {_EXAMPLES}/pivot.py:Pivot",
    "expert": f"--rpo.method {_EXAMPLES}/expert.py:Expert",
}
_OWN_RULE = "your own method, --rpo.method FILE.py:NAME (docs/methods.md)"
_BY_METHOD = "part of --rpo.method: {}"
_GONE = "nothing: it was removed, because no measurement showed a benefit"

# Option -> replacement, or value -> replacement where it depends on the value ("" for any other value).
FORMER: dict[str, str | dict[str, str]] = {
    "rpo.cut.rule": {**_RULES, "": _OWN_RULE},
    "rpo.cut.after_all_right": {**_RULES, "": _OWN_RULE},
    "rpo.cut.after_all_wrong": {**_RULES, "": _OWN_RULE},
    "rpo.cut.target": f"--rpo.adaptive.target, of --rpo.method {_EXAMPLES}/adaptive.py:Adaptive",
    "rpo.cut.depths": f"--rpo.tree.depths, of --rpo.method {_EXAMPLES}/tree.py:Tree",
    "rpo.cut.lenience": "--rpo.verify.lenience, of --rpo.method verify",
    "rpo.cut.max_reuses": "--rpo.replay.max_reuses",
    "rpo.cut.fresh_share": "--rpo.method off for 1, otherwise a smaller --rpo.replay.share",
    "rpo.update.rule": _BY_METHOD.format("rpo stores one rewarded sample, verify and off every sample"),
    "rpo.update.enable": "--rpo.update.epsilon off for false; true is the default",
    "rpo.prefix_loss.mode": {
        "mask": _BY_METHOD.format("rpo"),
        "include": _BY_METHOD.format("paper or verify"),
        "segment": f"--rpo.tree.segments true, of --rpo.method {_EXAMPLES}/tree.py:Tree",
        "": _GONE,
    },
    "rpo.prefix_loss.cap": _GONE,
    "rpo.advantage.weight": _GONE,
    "rpo.shaping.reference": "nothing: the reference is the mean length of the group",
    "rpo.budget.floor": "nothing: --rpo.budget.rule factor:F does the same",
    "rpo.replay.by": _GONE,
    "rpo.select": _GONE,
    "rpo.init.n_samples": "nothing: --rpo.init.mode bulk samples one path per question",
    "rpo.init.temperature": "nothing: --rpo.init.mode bulk samples at --rollout.temperature",
    "rpo.init.top_p": "nothing: --rpo.init.mode bulk samples with --rollout.top_p",
    "rpo.init.max_new_tokens": "nothing: --rpo.init.mode bulk samples up to --rollout.max_new_tokens",
    "rpo.init.batch_size": "nothing: --rpo.init.mode bulk commits 256 questions an engine at a time",
    "rpo.init.max_tries": "nothing: --rpo.init.mode bulk samples in up to 3 rounds",
    "rpo.cache.log_probs": "nothing: the sampled tokens' log-probs are always stored",
    "rpo.dynamic.keep": _GONE,
    "rpo.log_samples_mb": "--rpo.log_samples MEGABYTES",
}
# Former values of current options.
FORMER_VALUES = {
    ("rpo.preset", "paper"): "--rpo.method paper",
    ("rpo.advantage.baseline", "none"): "--rpo.advantage.baseline estimator, the default",
    ("rpo.advantage.baseline", "depth"): f"--rpo.method {_EXAMPLES}/tree.py:Tree, which has that baseline",
    ("rpo.advantage.baseline", "history"): f"--rpo.method {_EXAMPLES}/history.py:History",
    ("rpo.log_samples", "true"): "--rpo.log_samples MEGABYTES, such as 1024",
    ("rpo.log_samples", "false"): "--rpo.log_samples 0, the default",
}


def refuse_former(words: list[str]) -> None:
    """Raises UsageError, with the replacement, for a former option or value."""
    for i, word in enumerate(words):
        if not word.startswith("--rpo."):
            continue
        name, _, value = word.removeprefix("--").partition("=")
        value = value or (words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else "")
        new = FORMER.get(name)
        if isinstance(new, dict):
            new = new.get(value, new[""])
        for part in value.split(","):
            new = new or FORMER_VALUES.get((name, part))
        if new:
            raise UsageError(f"--{name} {value}".rstrip() + f" is a former option; now: {new}")


# ── Options stored in a cache ──

_METHOD_OF = {  # (cut rule, update rule, loss on the prefix) -> method
    ("uniform", "epsilon_greedy", "mask"): {"rpo.method": "rpo", "rpo.cut.at": "uniform"},
    ("uncertain", "epsilon_greedy", "mask"): {"rpo.method": "rpo", "rpo.cut.at": "uncertain"},
    ("verify", "every", "include"): {"rpo.method": "verify"},
}
_RENAMED = {"rpo.cut.max_reuses": "rpo.replay.max_reuses", "rpo.cut.lenience": "rpo.verify.lenience"}
_UNIFORM = '"uniform"'
_KEPT_VALUES = {"rpo.cut.fresh_share": 0.0, "rpo.replay.by": "batch", "rpo.advantage.weight": "response"}


def translated(stored: Mapping[str, str]) -> dict[str, str]:
    """A run's stored options (name -> JSON) under today's names; those of the current version are returned unchanged.

    ``rpo.method`` is "none of this version" when no current method does what the run did. Raises UsageError for options that
    no version stored together.
    """
    if "rpo.cut.rule" not in stored:
        return dict(stored)
    try:
        return _translated(stored)
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"the options stored in the cache are of no version (at {error}): use another --ckpt.path"
        ) from error


def removed(stored: Mapping[str, str]) -> list[str]:
    """A phrase for each option that steered the run (name -> JSON) and is gone without a successor."""
    value = stored.get("rpo.select", _UNIFORM)
    return [] if value == _UNIFORM else [f"--rpo.select was {value}, which no version has any more"]


def _translated(stored: Mapping[str, str]) -> dict[str, str]:
    was = {name: json.loads(value) for name, value in stored.items()}
    method = _former_method(was)
    now = {_RENAMED.get(name, name): value for name, value in was.items() if name not in FORMER or name in _RENAMED}
    baseline = was["rpo.advantage.baseline"]
    now["rpo.advantage.baseline"] = "estimator" if baseline == "none" else baseline
    if not was["rpo.update.enable"]:
        now["rpo.update.epsilon"] = None
    return {name: json.dumps(value, sort_keys=True) for name, value in (now | method).items()}


def _former_method(was: Mapping[str, object]) -> dict[str, str]:
    rules = (was["rpo.cut.rule"], was["rpo.update.rule"], was["rpo.prefix_loss.mode"])
    turns = {was["rpo.cut.after_all_right"], was["rpo.cut.after_all_wrong"]} - {None}
    plain = was["rpo.advantage.baseline"] in ("none", "zero") and was["rpo.shaping.reference"] == "group"
    same = all(was.get(name, kept) == kept for name, kept in _KEPT_VALUES.items())
    known = _METHOD_OF.get(rules)  # type: ignore[arg-type]
    if known is None or turns or not plain or not same or str(was["rpo.budget.rule"]).startswith("factor"):
        return {"rpo.method": "none of this version"}
    return known
