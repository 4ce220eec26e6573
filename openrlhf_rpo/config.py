"""The general ``--rpo.*`` options, and ``RPOConfig``, which holds them and the method.

One frozen dataclass per group. Shaping options are in ``algo/shaping.py``, a method's options in the method's file.
"""

import argparse
from dataclasses import dataclass, field
from keyword import iskeyword
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.algo.methods import METHODS, Method, MethodError, method_class, method_of, option_names
from openrlhf_rpo.algo.shaping import ShapingOptions
from openrlhf_rpo.option import (
    AT_LEAST_ONE,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_ABOVE_ZERO,
    Bounds,
    add_option,
    check_bounds,
    need,
    option,
    options_of,
)


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Where the first stored paths come from."""

    mode: str = option(
        "progressive",
        "progressive: fill the cache from first visits; bulk: sample it before training (the paper); import: read source",
        choices=("progressive", "bulk", "import"),
    )
    source: str | None = option(
        None,
        "import: a run's --ckpt.path, cache file or URL (or any of these @STEP), exported paths, or FILE:COLUMN (solutions)",
        may_change=True,
    )

    def check(self) -> None:
        importing = self.mode == "import"
        need(self.source or not importing, "init.mode", self.mode, "--rpo.init.source is missing")
        need(importing or not self.source, "init.source", self.source, "it needs --rpo.init.mode import")


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """Stored paths as drafts for new ones (speculative decoding): the same samples, faster."""

    mode: str = option(
        "off",
        "on: draft tokens from a question's stored paths and check several at a time; auto: where that pays",
        choices=("auto", "on", "off"),
        alias="drafts",
        may_change=True,
    )
    tokens: int = option(4, "longest draft, in tokens", bounds=Bounds(1, 128), may_change=True)


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """How rewards become advantages."""

    baseline: str = option(
        "estimator",
        "estimator: subtract the baseline of --algo.advantage.estimator; zero: subtract nothing (RAFT)",
        choices=("estimator", "zero"),
    )


@dataclass(frozen=True, kw_only=True)
class DynamicOptions:
    """Dynamic sampling, with --algo.dynamic_filtering_enable (DAPO)."""

    max_batches: int = option(
        10,
        "stop with an error when this many batches of questions do not fill one training batch",
        bounds=AT_LEAST_ONE,
        may_change=True,
    )


@dataclass(frozen=True, kw_only=True)
class AsyncOptions:
    """Asynchronous training, with --train.async_enable."""

    max_age: int = option(
        4,
        "do not train on answers with a part more than this many steps old: store them, and train on other questions "
        "(with a reward model, which scores only answers trained on: train on all)",
        bounds=NOT_NEGATIVE,
    )


LARGE_CACHE = 4 * 2**30
"""Bytes beyond which a cache keeps ``VERSIONS_OF_A_LARGE_CACHE`` by default, not all versions."""
VERSIONS_OF_A_LARGE_CACHE = 10


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where the path cache lives."""

    url: str | None = option(
        None,
        "sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE (default: rpo_cache.db in --ckpt.path)",
        may_change=True,
    )
    keep_versions: int | None = option(
        None,
        "keep replaced paths for this many steps (default: forever, or 10 steps if the cache exceeds 4 GiB); paths that a "
        "checkpoint needs always stay",
        bounds=NOT_NEGATIVE,
        may_change=True,
    )

    def check(self) -> None:
        known = self.url is None or self.url.startswith(("sqlite:///", "postgresql+psycopg://"))
        need(known, "cache.url", "URL", "expected sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE")


@dataclass(frozen=True, kw_only=True)
class RewardOptions:
    """Shipped reward functions, and how Python rewards run."""

    functions: str | None = option(
        None, "shipped rewards, comma separated: math, format, cosine; instead of --reward.remote_url"
    )
    weights: str | None = option(None, "weights of the shipped rewards, comma separated (default: 1 each)")
    cosine_max_len: int = option(
        1000, "cosine: path length in tokens beyond which length no longer matters", bounds=AT_LEAST_ONE
    )
    timeout: float = option(
        30.0, "seconds a reward call may take before its process is killed", bounds=POSITIVE, may_change=True
    )
    workers: int = option(2, "reward worker processes", bounds=AT_LEAST_ONE, may_change=True)
    on_failure: float = option(0.0, "reward of a sample whose reward call raises or times out", bounds=FINITE)
    max_failure_share: float = option(
        0.05,
        "stop the run when more than one of a rollout's rewards, and more than this share of them, fail",
        bounds=SHARE,
        may_change=True,
    )

    def check(self) -> None:
        if self.weights is not None:
            paired = self.functions is not None and len(self.weights.split(",")) == len(self.functions.split(","))
            need(paired, "reward.weights", self.weights, "expected one weight for each of --rpo.reward.functions")


GROUPS = {
    "init": InitOptions,
    "drafts": DraftOptions,
    "shaping": ShapingOptions,
    "advantage": AdvantageOptions,
    "dynamic": DynamicOptions,
    "async": AsyncOptions,
    "cache": CacheOptions,
    "reward": RewardOptions,
}


@dataclass(frozen=True, kw_only=True)
class RPOConfig:
    """All options of RPO. ``enable`` false runs plain OpenRLHF."""

    enable: bool = option(True, "false: plain OpenRLHF, same command line", may_change=True)
    method_name: str = option(
        "rpo",
        "how earlier answers are reused: rpo, paper, verify or off (no reuse); FILE.py:NAME for your own method",
    )
    preset: str | None = option(
        None,
        "comma separated: grpo, dapo, raft (estimator, clipping, KL); options on the command line win",
        may_change=True,  # the options that it sets are compared
    )
    device: str = option(
        "auto", "auto: CUDA if Ray has GPUs, else the CPU layer", choices=("auto", "cpu", "cuda"), may_change=True
    )
    trust_remote_code: bool = option(
        False, "run Python code that comes with a model (auto_map); otherwise refuse such models", may_change=True
    )
    allow_changed_options: bool = option(
        False, "resume even if options that affect training differ from those the run started with", may_change=True
    )
    tail: float = option(
        1.0,
        "stop a rollout when this share of its groups is done, and continue the others in the next step; 1: wait for all",
        bounds=SHARE_ABOVE_ZERO,
    )
    log_samples: int = option(
        0,
        "megabytes of sampled responses to keep in <ckpt.path>/rpo_samples; the oldest are removed first",
        bounds=NOT_NEGATIVE,
        may_change=True,
    )
    shared_prefix: str = option(
        "auto",
        "in training, compute the common start of samples once; auto: where possible, after a check; on: always, or stop",
        choices=("auto", "on", "off"),
        may_change=True,
    )
    engine_limits: str | None = option(
        None,
        "SEQUENCES or SEQUENCES,TOKENS: an engine's most sequences at a time and most tokens per pass (vLLM's max_num_seqs "
        "and max_num_batched_tokens; default: vLLM's for offline use on this hardware; on a CPU TOKENS is at least "
        "--data.max_len)",
        may_change=True,
    )
    method: Method = field(default_factory=METHODS["rpo"])
    init: InitOptions = field(default_factory=InitOptions)
    drafts: DraftOptions = field(default_factory=DraftOptions)
    shaping: ShapingOptions = field(default_factory=ShapingOptions)
    advantage: AdvantageOptions = field(default_factory=AdvantageOptions)
    dynamic: DynamicOptions = field(default_factory=DynamicOptions)
    async_: AsyncOptions = field(default_factory=AsyncOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    reward: RewardOptions = field(default_factory=RewardOptions)

    @classmethod
    def from_namespace(cls, rpo: SimpleNamespace) -> "RPOConfig":
        """Build and check from the hierarchical ``args.rpo``. Raises OptionError or MethodError."""
        groups: dict[str, Any] = {
            name: group(**{f: getattr(getattr(rpo, name), f) for f in options_of(group)}) for name, group in GROUPS.items()
        }
        top = {f: getattr(rpo, option) for f, option in top_options().items()}
        config = cls(**top, **{_field(name): group for name, group in groups.items()}, method=method_of(rpo))
        config.check()
        return config

    def check(self) -> None:
        """Raises OptionError."""
        check_bounds(self, top_options())
        for name, group in GROUPS.items():
            check_bounds(getattr(self, _field(name)), {f: f"{name}.{f}" for f in options_of(group)})
        limits_of(self.engine_limits)
        for checked in (self.init, self.shaping, self.cache, self.reward):
            checked.check()


def _field(group: str) -> str:
    """The field of ``RPOConfig`` that holds a group of options."""
    return f"{group}_" if iskeyword(group) else group


def limits_of(text: str | None) -> dict[str, int]:
    """The engines' arguments of ``--rpo.engine_limits``; none for None. Raises OptionError."""
    if text is None:
        return {}
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    right = len(numbers) in (1, 2) and min(numbers) > 0
    need(right, "engine_limits", text, "expected a number of sequences above 0, or two numbers, SEQUENCES,TOKENS")
    need(numbers[0] <= numbers[-1], "engine_limits", text, "a pass has at least a token for every sequence")
    return dict(zip(("max_num_seqs", "max_num_batched_tokens"), numbers, strict=False))


def top_options() -> dict[str, str]:
    """Field of ``RPOConfig`` -> option without ``--rpo.``: ``method_name`` is ``--rpo.method``."""
    return {name: name.removesuffix("_name") for name in options_of(RPOConfig)}


def changeable() -> list[str]:
    """The options, without ``--rpo.``, whose values may differ in a resumed run."""
    fields = {top_options()[name]: f for name, f in options_of(RPOConfig).items()}
    for group, kind in GROUPS.items():
        fields |= {f"{group}.{name}": f for name, f in options_of(kind).items()}
    return [name for name, f in fields.items() if f.metadata["may_change"]]


def add_options(parser: argparse.ArgumentParser, method: str | None = None) -> None:
    """Add every ``--rpo.*`` option to ``parser``: general ones, then those of the shipped methods and of ``method``."""
    top = parser.add_argument_group("RPO")
    for name, f in options_of(RPOConfig).items():
        add_option(top, top_options()[name], f)
    for name, group in GROUPS.items():
        titled = parser.add_argument_group(f"RPO: {name}", (group.__doc__ or "").strip().splitlines()[0])
        for field_name, f in options_of(group).items():
            add_option(titled, f"{name}.{field_name}", f)
    kinds = dict(METHODS)
    if method is not None:
        kinds[method_class(method).name] = method_class(method)
    ours = parser.add_argument_group("RPO: methods", "Options of the methods, each with the methods that have it.")
    for name, (f, note) in _method_options(kinds).items():
        if f"--rpo.{name}" in parser._option_string_actions:
            raise MethodError(
                f"--rpo.method {method}: its option --rpo.{name} is already one of RPO's: name the field otherwise"
            )
        add_option(ours, name, f, note)


def _method_options(kinds: dict[str, type[Method]]) -> dict[str, tuple[Any, str]]:
    """Option -> (its field in the first method that has it, a note with all methods that have it and other defaults)."""
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for method, kind in kinds.items():
        declared = options_of(kind)
        for name, option_name in option_names(kind).items():
            _, defaults = found.setdefault(option_name, (declared[name], {}))
            defaults[method] = declared[name].default
    notes = {}
    for name, (f, defaults) in found.items():
        others = "".join(f"; {default} in {method}" for method, default in defaults.items() if default != f.default)
        notes[name] = (f, f"{others}; of {', '.join(defaults)}")
    return notes
