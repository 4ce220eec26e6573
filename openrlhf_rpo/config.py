"""Every ``--rpo.*`` option: its default, its help, its check, once.

One frozen dataclass a group. A field is an option: its default and its line of help stand beside it, the parser is
built from it (``add_options``), and ``RPOConfig.from_namespace`` builds and checks it. Nothing else holds a default.
"""

import argparse
import math
from dataclasses import MISSING, dataclass, field, fields
from types import SimpleNamespace
from typing import Any


class OptionError(ValueError):
    """An option has a value that cannot work; the message names the option, the value and what to do."""


_SAME = object()


def option(default: Any, help: str, choices: tuple[str, ...] = (), otherwise: Any = _SAME) -> Any:
    """A dataclass field that is also a command line option.

    ``otherwise``: its default where another cut rule than ``verify`` is chosen.
    """
    return field(default=default, metadata={"help": help, "choices": choices, "otherwise": otherwise})


def _need(condition: object, name: str, value: object, rule: str) -> None:
    if not condition:
        raise OptionError(f"--rpo.{name} {value}: {rule}")


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Where the first cached paths come from (spec section 1)."""

    mode: str = option(
        "progressive",
        "progressive: the first visit of a question samples full paths, trains on them and caches one; "
        "bulk: sample one path a question before training (the paper); "
        "import: take the paths of --rpo.init.source, and go on as progressive for questions without one",
        ("progressive", "bulk", "import"),
    )
    source: str | None = option(
        None,
        "import: another run's --ckpt.path, cache file or URL (with @STEP as it was at that step), a file that "
        "openrlhf-rpo cache export wrote, or FILE:COLUMN, worked solutions beside the questions of a Parquet or JSONL file",
    )
    n_samples: int = option(1, "bulk: samples a question, of which the best rewarded (then the shortest) is kept")
    max_tries: int = option(3, "bulk: rounds of sampling for a question whose samples all fail")
    batch_size: int = option(256, "bulk: questions a batch; each finished batch is committed")
    temperature: float | None = option(None, "bulk: sampling temperature (default: --rollout.temperature)")
    top_p: float | None = option(None, "bulk: nucleus mass (default: --rollout.top_p)")
    max_new_tokens: int | None = option(None, "bulk: longest path in tokens (default: the run's own)")

    def check(self) -> None:
        importing = self.mode == "import"
        _need(self.source or not importing, "init.mode", self.mode, "--rpo.init.source is missing: what is imported")
        _need(importing or not self.source, "init.source", self.source, "it needs --rpo.init.mode import")
        _need(self.n_samples >= 1, "init.n_samples", self.n_samples, "at least 1")
        _need(self.max_tries >= 1, "init.max_tries", self.max_tries, "at least 1")
        _need(self.batch_size >= 1, "init.batch_size", self.batch_size, "at least 1")
        finite = self.temperature is None or 0 <= self.temperature < math.inf
        _need(finite, "init.temperature", self.temperature, "0 or more")
        _need(self.top_p is None or 0 < self.top_p <= 1, "init.top_p", self.top_p, "in (0, 1]")
        _need(self.max_new_tokens is None or self.max_new_tokens >= 1, "init.max_new_tokens", self.max_new_tokens, ">= 1")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Which questions a step visits (where a cached path is cut is another matter)."""

    share: float = option(
        0.85,
        "share of a batch that replays cached paths, least recently visited first; the rest comes from the data in order "
        "and starts from the bare question. 0: data order alone, replaying what is cached (the paper)",
        otherwise=0.75,
    )

    by: str = option(
        "batch",
        "batch: every batch has that share; step: whole steps replay and whole steps start bare, in that proportion, so "
        "that a rollout of short responses does not wait for a full path",
        ("batch", "step"),
    )

    def check(self) -> None:
        _need(0 <= self.share < 1, "replay.share", self.share, "at least 0 and below 1")


VERIFY = "verify"
CUT_RULES = {
    "uniform": "m ~ U{0..L}, both ends included (the paper)",
    "uncertain": "1..L, in proportion to how unsure the policy was of the token at the cut",
    "adaptive": "1..L, so far back that about a share of cut.target succeeds",
    "tree": "samples of a group start at cut.depths depths of the path, spread over 1..L",
    "bare": "everything, the bare question: for cut.after_all_right",
    "verify": "the current policy accepts each sample's own stored path up to a token",
    "failure": "uniform, of a wrong path (needs update.rule right_and_wrong)",
    "pivot": "of a wrong path, too, deep in it but not past what can be saved",
    "expert": "uniform, of the path that --rpo.init.mode import took",
}
UPDATE_RULES = {
    "epsilon_greedy": "one sample, the best with probability epsilon, else another one (the paper)",
    "right_and_wrong": "the same, and beside it a wrong sample, for cut.rule failure and pivot",
    "every": "each sample in a place of its own, right or wrong, for cut.rule verify",
}


def _rules(lines: dict[str, str]) -> str:
    return "; ".join(f"{name}: {line}" for name, line in lines.items()) + "; or your own, FILE.py:FUNCTION"


def _need_rule(name: str, value: str | None, lines: dict[str, str]) -> None:
    known = value is None or value in lines or ".py:" in value
    _need(known, name, value, f"expected {', '.join(lines)}, or FILE.py:FUNCTION")


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """Where the cached path is cut (paper section 3.2, equations 3 and 4)."""

    rule: str = option(
        "verify",
        _rules(CUT_RULES) + ". Where none is given: uniform with --rpo.init.mode bulk or import, another "
        "--rollout.temperature or top_p than 1, no stored log-probs, or an option that only a rule that cuts reads",
    )
    after_all_right: str | None = option(None, "the rule after a group that was all right (default: cut.rule)")
    after_all_wrong: str | None = option(
        None, "the rule after a group that was all wrong; needs update.on_all_wrong keep (default: cut.rule)"
    )
    max: str = option(
        "ratio:0.5", "L, the largest cut: ratio:R of the shortest path of the question's last group, or fixed:N tokens"
    )
    target: float = option(0.5, "adaptive: share of a group's samples that should succeed")
    lenience: float = option(1.0, "verify: how readily a stored token is accepted; 1: as speculative decoding does")
    depths: int = option(2, "tree: how many depths, n_samples_per_prompt a multiple of it")
    max_reuses: int = option(6, "a question starts bare after this many replays in a row; 0: never", otherwise=0)
    scope: str = option("group", "one cut for the group (shared prefix) or one for each sample", ("group", "sample"))
    fresh_share: float = option(0.0, "share of replayed groups that start from the bare question all the same")

    def check(self) -> None:
        self.parse_max()
        _need_rule("cut.rule", self.rule, CUT_RULES)
        _need_rule("cut.after_all_right", self.after_all_right, CUT_RULES)
        _need_rule("cut.after_all_wrong", self.after_all_wrong, CUT_RULES)
        _need(0 < self.target < 1, "cut.target", self.target, "above 0 and below 1")
        _need(0 <= self.lenience < math.inf, "cut.lenience", self.lenience, "0 or more")
        _need(self.depths >= 1, "cut.depths", self.depths, "at least 1")
        _need(self.max_reuses >= 0, "cut.max_reuses", self.max_reuses, "0 or more")
        _need(0 <= self.fresh_share <= 1, "cut.fresh_share", self.fresh_share, "a share between 0 and 1")

    @property
    def rules(self) -> tuple[str, ...]:
        """Every rule that may have its turn."""
        return tuple(name for name in (self.rule, self.after_all_right, self.after_all_wrong) if name is not None)

    def parse_max(self) -> tuple[str, float]:
        """("ratio", R) or ("fixed", N)."""
        return _parse_rule("cut.max", self.max, {"ratio": (0.0, 1.0), "fixed": (0, math.inf)})


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """How many tokens a sample may generate (spec section 3)."""

    rule: str = option(
        "remaining",
        "remaining: max_new_tokens minus the prefix; factor:F: at most ceil(F * cut), the reference code's cap is factor:1",
    )
    floor: int = option(16, "factor: never less than this many tokens")

    def check(self) -> None:
        self.parse()
        _need(self.floor >= 1, "budget.floor", self.floor, "at least 1")

    def parse(self) -> tuple[str, float]:
        """("remaining", 0.0) or ("factor", F)."""
        if self.rule == "remaining":
            return "remaining", 0.0
        return _parse_rule("budget.rule", self.rule, {"factor": (0.0, math.inf)})


@dataclass(frozen=True, kw_only=True)
class ShapingOptions:
    """Length-aware reward shaping (paper section 3.4); scores stay unshaped."""

    alpha: float = option(0.0, "sensitivity to length; 0 turns shaping off; the paper: 0.01")
    min: float = option(0.5, "lower clip bound, the paper's m")
    max: float = option(1.0, "upper clip bound, the paper's M")
    scope: str = option(
        "rewarded",
        "rewarded: shape samples with a score above 0; all: the literal equation, which lifts wrong answers, too",
        ("rewarded", "all"),
    )
    reference: str = option("group", "l_ref: mean length of the group, or of its rewarded samples", ("group", "rewarded"))

    def check(self) -> None:
        _need(0 <= self.alpha < math.inf, "shaping.alpha", self.alpha, "0 or more")
        _need(self.min <= self.max, "shaping.min", self.min, f"at most --rpo.shaping.max {self.max}")


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """What RPO adds to the advantage: samples of a group that do not start alike."""

    baseline: str = option(
        "none",
        "what is taken from each reward before the estimator sees it; depth: the mean of the other samples that start at "
        "the same depth, so that a sample is compared with those that had its chance; history: that mean with the chance "
        "that the question's earlier visits give to this cut, so that groups that agree teach, too (needs an estimator that "
        "does not center by group: reinforce); zero: nothing, and the estimator takes nothing either, so that the right "
        "samples of every group teach and wrong ones, with a reward of 0, say nothing (RAFT)",
        ("none", "depth", "history", "zero"),
    )
    weight: str = option(
        "response",
        "what a sample weighs in a mean over sequences: response, alike whatever its length; path, the share of its path "
        "that it wrote itself, so that a short response moves the policy less a token",
        ("response", "path"),
    )

    def check(self) -> None:
        """The choices are the parser's."""


@dataclass(frozen=True, kw_only=True)
class PrefixLossOptions:
    """What the prefix tokens do in the loss (spec section 5)."""

    mode: str = option(
        "include",
        "mask: only response tokens carry loss; include: the whole path (the paper); "
        "weighted: prefix tokens weighted by min(cap, pi_theta / mu); segment: where samples start at several depths of one "
        "path (cut.rule tree), what lies between two of them, credited with the difference of their mean rewards",
        ("mask", "include", "weighted", "segment"),
        otherwise="mask",
    )
    cap: float = option(1.0, "weighted: c, the largest weight of a prefix token (paper appendix C)")

    def check(self) -> None:
        _need(self.cap > 0, "prefix_loss.cap", self.cap, "above 0")


@dataclass(frozen=True, kw_only=True)
class DynamicOptions:
    """Dynamic sampling, used with --algo.dynamic_filtering_enable (DAPO)."""

    keep: str = option(
        "scores", "keep a group when its scores differ, or when its shaped rewards differ", ("scores", "rewards")
    )
    max_batches: int = option(10, "stop with an error after this many batches of questions without a full batch of signal")

    def check(self) -> None:
        _need(self.max_batches >= 1, "dynamic.max_batches", self.max_batches, "at least 1")


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """What enters the cache after a step (paper section 3.3)."""

    enable: bool = option(True, "false keeps the initial cache, C(0)")
    rule: str = option("every", _rules(UPDATE_RULES), otherwise="epsilon_greedy")
    epsilon: float = option(0.1, "probability that the best sample is cached, else another one; the paper's best: 0.1")
    admit: str = option("rewarded", "only rewarded samples may enter, or any (the paper's equation)", ("rewarded", "any"))
    on_all_wrong: str = option(
        "reset",
        "after a group without a rewarded sample: keep the path, or reset: start once from the bare question",
        ("keep", "reset"),
    )

    def check(self) -> None:
        _need_rule("update.rule", self.rule, UPDATE_RULES)
        _need(0 <= self.epsilon <= 1, "update.epsilon", self.epsilon, "a probability")


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where the path cache lives."""

    url: str | None = option(
        None,
        "sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE (default: rpo_cache.db below --ckpt.path)",
    )
    keep_versions: int | None = option(
        None,
        "how many steps back replaced paths stay readable (default: all); whatever a checkpoint below --ckpt.path can go "
        "back to always stays",
    )
    log_probs: bool = option(
        True,
        "store the sampled tokens' log-probs with each path (needed by prefix_loss include, weighted and segment, and by "
        "cut.rule uncertain and verify)",
    )

    def check(self) -> None:
        _need(
            self.url is None or self.url.startswith(("sqlite:///", "postgresql+psycopg://")),
            "cache.url",
            self.url,
            "expected sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE",
        )
        _need(self.keep_versions is None or self.keep_versions >= 0, "cache.keep_versions", self.keep_versions, "0 or more")


@dataclass(frozen=True, kw_only=True)
class RewardOptions:
    """Shipped reward functions and how any Python reward is run."""

    functions: str | None = option(
        None, "shipped rewards, comma separated: math, format, cosine; instead of --reward.remote_url"
    )
    weights: str | None = option(None, "weights of the shipped rewards, comma separated (default: 1 each)")
    cosine_max_len: int = option(1000, "cosine: path length in tokens beyond which length changes nothing any more")
    timeout: float = option(30.0, "seconds a reward call may take before its process is killed")
    workers: int = option(2, "reward worker processes")
    on_failure: float = option(0.0, "reward of a sample whose reward call raised or timed out")
    max_failure_share: float = option(0.05, "stop the run when more than this share of a step's rewards failed")

    def check(self) -> None:
        _need(0 < self.timeout < math.inf, "reward.timeout", self.timeout, "above 0")
        _need(math.isfinite(self.on_failure), "reward.on_failure", self.on_failure, "a number")
        _need(self.cosine_max_len >= 1, "reward.cosine_max_len", self.cosine_max_len, "at least 1")
        _need(self.workers >= 1, "reward.workers", self.workers, "at least 1")
        _need(0 <= self.max_failure_share <= 1, "reward.max_failure_share", self.max_failure_share, "a share")
        if self.weights is not None:
            _need(
                self.functions is not None and len(self.weights.split(",")) == len(self.functions.split(",")),
                "reward.weights",
                self.weights,
                "one weight for each of --rpo.reward.functions",
            )


GROUPS = {
    "init": InitOptions,
    "replay": ReplayOptions,
    "cut": CutOptions,
    "budget": BudgetOptions,
    "shaping": ShapingOptions,
    "advantage": AdvantageOptions,
    "prefix_loss": PrefixLossOptions,
    "dynamic": DynamicOptions,
    "update": UpdateOptions,
    "cache": CacheOptions,
    "reward": RewardOptions,
}


@dataclass(frozen=True, kw_only=True)
class RPOConfig:
    """All options of RPO. ``enable`` false runs plain OpenRLHF."""

    enable: bool = option(True, "false: plain OpenRLHF, same command line")
    preset: str | None = option(
        None,
        "comma separated: paper (its literal choices), grpo, raft, dapo (estimator, clipping, KL); flags given by hand win",
    )
    device: str = option("auto", "auto: CUDA if Ray has GPUs, else the CPU platform layer", ("auto", "cpu", "cuda"))
    trust_remote_code: bool = option(
        False, "run Python code that a model brings along (auto_map); without it such a model is refused"
    )
    allow_changed_options: bool = option(
        False, "resume although options that steer the run differ from those that it was started with"
    )
    log_samples: bool = option(False, "keep every sampled response in <ckpt.path>/rpo_samples, a Parquet file a step")
    log_samples_mb: int = option(1024, "megabytes that these files may take; the oldest go first")
    shared_prefix: str = option(
        "auto",
        "run the tokens that a group shares once in training: auto, where model and options allow it and the first batch "
        "agrees with the plain path; on, or stop with the reason; off",
        ("auto", "on", "off"),
    )
    init: InitOptions = field(default_factory=InitOptions)
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    cut: CutOptions = field(default_factory=CutOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    shaping: ShapingOptions = field(default_factory=ShapingOptions)
    advantage: AdvantageOptions = field(default_factory=AdvantageOptions)
    prefix_loss: PrefixLossOptions = field(default_factory=PrefixLossOptions)
    dynamic: DynamicOptions = field(default_factory=DynamicOptions)
    update: UpdateOptions = field(default_factory=UpdateOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    reward: RewardOptions = field(default_factory=RewardOptions)

    @classmethod
    def from_namespace(cls, rpo: SimpleNamespace) -> "RPOConfig":
        """Build and check from the hierarchical ``args.rpo``. Raises OptionError."""
        groups = {name: group(**vars(getattr(rpo, name))) for name, group in GROUPS.items()}
        top = {f.name: getattr(rpo, f.name) for f in fields(cls) if "help" in f.metadata}
        config = cls(**top, **groups)
        config.check()
        return config

    def check(self) -> None:
        for name in GROUPS:
            getattr(self, name).check()
        _need(self.log_samples_mb >= 1, "log_samples_mb", self.log_samples_mb, "at least 1")
        if self.prefix_loss.mode != "mask" and not self.cache.log_probs:
            raise OptionError(
                f"--rpo.prefix_loss.mode {self.prefix_loss.mode} needs stored log-probs: drop --rpo.cache.log_probs false"
            )
        if not self.update.enable and self.init.mode == "progressive":
            raise OptionError(
                "--rpo.update.enable false keeps the initial cache, and --rpo.init.mode progressive starts with none, so "
                "that nothing would ever be replayed: add --rpo.init.mode bulk or import"
            )
        if self.enable:
            self._check_rules()

    def _check_rules(self) -> None:
        """What a cut rule needs of the other options."""
        rules = set(self.cut.rules)
        for rule in sorted(rules & {"uncertain", "verify"}):
            if not self.cache.log_probs:
                raise OptionError(f"--rpo.cut.rule {rule} needs stored log-probs: drop --rpo.cache.log_probs false")
        for rule, update in (("verify", "every"), ("failure", "right_and_wrong"), ("pivot", "right_and_wrong")):
            if rule in rules and self.update.rule != update and self.update.rule in UPDATE_RULES:
                raise OptionError(
                    f"--rpo.cut.rule {rule} cuts paths that --rpo.update.rule {self.update.rule} does not keep: "
                    f"add --rpo.update.rule {update}" + (", or another cut rule" if rule == VERIFY else "")
                )
        if self.cut.after_all_wrong is not None and self.update.on_all_wrong == "reset":
            raise OptionError(
                f"--rpo.cut.after_all_wrong {self.cut.after_all_wrong}: the next group after one that was all wrong starts "
                "from the bare question; add --rpo.update.on_all_wrong keep"
            )
        if "expert" in rules and self.update.rule == "every":
            raise OptionError(
                "--rpo.cut.rule expert and --rpo.update.rule every keep their paths in the same places: the imported ones "
                "would be overwritten. Use another of the two"
            )
        if "expert" in rules and self.init.mode != "import":
            raise OptionError("--rpo.cut.rule expert cuts imported paths: add --rpo.init.mode import and --rpo.init.source")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every ``--rpo.*`` option to ``parser``, one argument group for each group of options."""
    top = parser.add_argument_group("RPO")
    _add_fields(top, "rpo", RPOConfig)
    for name, group in GROUPS.items():
        doc = (group.__doc__ or "").strip().splitlines()[0]
        _add_fields(parser.add_argument_group(f"RPO: {name}", doc), f"rpo.{name}", group)


def _add_fields(parser: argparse._ArgumentGroup, prefix: str, group: type) -> None:
    for f in fields(group):
        if "help" not in f.metadata:
            continue
        assert f.default is not MISSING
        parser.add_argument(
            f"--{prefix}.{f.name}",
            type=_parse_bool if isinstance(f.default, bool) else _value_type(f),
            default=f.default,
            choices=f.metadata["choices"] or None,
            help=f.metadata["help"].replace("%", "%%") + f" (default: {_default(f)})",
        )


def _default(f: Any) -> str:
    otherwise = f.metadata["otherwise"]
    return str(f.default) if otherwise is _SAME else f"{f.default} with cut.rule {VERIFY}, {otherwise} with another"


def defaults_with(cut_rule: str) -> dict[str, object]:
    """What differs from the parser's defaults, option to value, where ``--rpo.cut.rule`` is this one."""
    if cut_rule == VERIFY:
        return {}
    return {
        f"rpo.{name}.{f.name}": f.metadata["otherwise"]
        for name, group in GROUPS.items()
        for f in fields(group)
        if f.metadata["otherwise"] is not _SAME
    }


def _value_type(f: Any) -> type:
    for kind in (int, float):
        if f.type in (kind, kind | None):
            return kind
    return str


def _parse_bool(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise argparse.ArgumentTypeError(f"true or false, not {text!r}")


def _parse_rule(name: str, text: str, kinds: dict[str, tuple[float, float]]) -> tuple[str, float]:
    kind, _, number = text.partition(":")
    expected = " or ".join(f"{k}:NUMBER" for k in kinds)
    _need(kind in kinds, name, text, f"expected {expected}")
    try:
        value = float(number)
    except ValueError:
        raise OptionError(f"--rpo.{name} {text}: {number!r} is not a number; expected {expected}") from None
    _need(math.isfinite(value), name, text, f"expected {expected}")
    low, high = kinds[kind]
    _need(
        low < value <= high or (kind == "fixed" and value == 0),
        name,
        text,
        f"{kind} above {low:g} and at most {high:g}",
    )
    return kind, value
