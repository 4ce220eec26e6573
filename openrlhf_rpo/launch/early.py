"""Checks of a command's words before OpenRLHF's own, which ignore some errors or report them under other names."""

import argparse
import importlib.util
import math
import string
from collections.abc import Set
from typing import NoReturn

from openrlhf_rpo.algo.variance import CENTERED
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.ranges import check_ranges

MAY_BE_EMPTY = {"ckpt.best_metric_key", "rpo.preset"}  # "" lets OpenRLHF choose; "" is no preset


def check_words(flat: argparse.Namespace, given: Set[str]) -> None:
    """Raises UsageError for values that are wrong by themselves, and for numbers that do not fit each other."""
    for name in sorted(given - MAY_BE_EMPTY):
        value = getattr(flat, name, None)  # an option of a method that --rpo.enable false removed
        if isinstance(value, str) and not value.strip():
            raise UsageError(f"--{name} {value!r}: the value is empty; leave the option out, or give one")
        if isinstance(value, str) and "\0" in value:
            raise UsageError(f"--{name} {value!r}: a NUL character")
    check_ranges(flat)
    _check_template(flat)
    _check_shares(flat)
    _check_pairs(flat)
    _check_samples(flat)
    if flat.use_ms and importlib.util.find_spec("modelscope") is None:
        raise UsageError("--use_ms needs the package modelscope, which is not installed: pip install modelscope")


def _check_template(flat: argparse.Namespace) -> None:
    """OpenRLHF trains without a template that has no {}."""
    template = getattr(flat, "data.input_template")
    if template is None:
        return
    if getattr(flat, "data.apply_chat_template"):
        raise UsageError("--data.input_template is not used with --data.apply_chat_template: give one of the two")
    try:
        places = [field for _, *field in string.Formatter().parse(template) if field[0] is not None]
    except ValueError as error:
        raise UsageError(f"--data.input_template {template!r}: {error}; write other braces as {{{{ and }}}}") from error
    if places != [["", "", None]]:
        raise UsageError(
            f"--data.input_template {template!r}: it needs {{}} once, where the question goes, such as 'Question: {{}}'; "
            "write other braces as {{ and }}"
        )


def _check_shares(flat: argparse.Namespace) -> None:
    """--data.prompt_probs: one positive share per data set, which sum to 1."""
    text, names = getattr(flat, "data.prompt_probs"), getattr(flat, "data.prompt_dataset") or ""
    if text is None:
        return
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--data.prompt_probs {text}: expected numbers between commas, such as 0.5,0.5") from error
    if len(shares) != len(names.split(",")):
        raise UsageError(f"--data.prompt_probs {text}: expected one for each data set of --data.prompt_dataset {names}")
    if not all(share > 0 for share in shares) or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise UsageError(f"--data.prompt_probs {text}: each must be above 0, and together they must be 1")


def _check_pairs(flat: argparse.Namespace) -> None:
    for name in ("reward.clip_range", "algo.dynamic_filtering_range"):
        low, high = getattr(flat, name)
        if not low < high:
            raise UsageError(f"--{name} {low:g} {high:g}: the first number must be below the second")
    threshold = getattr(flat, "algo.advantage.is_correction_threshold")
    if len(threshold) > 2 or sorted(threshold) != list(threshold):
        shown = " ".join(f"{number:g}" for number in threshold)
        raise UsageError(f"--algo.advantage.is_correction_threshold {shown}: expected HIGH, or LOW and a larger HIGH")


def _check_samples(flat: argparse.Namespace) -> None:
    estimator, n = getattr(flat, "algo.advantage.estimator"), getattr(flat, "rollout.n_samples_per_prompt")
    if n == 1 and (estimator in CENTERED or getattr(flat, "algo.dynamic_filtering_enable")):
        who = f"--algo.advantage.estimator {estimator}" if estimator in CENTERED else "--algo.dynamic_filtering_enable"
        raise UsageError(f"--rollout.n_samples_per_prompt 1: {who} compares the samples of a question, at least 2")
    batch, micro = getattr(flat, "rollout.batch_size"), getattr(flat, "rollout.micro_batch_size")
    actors = getattr(flat, "actor.num_nodes") * getattr(flat, "actor.num_gpus_per_node")
    replicas = actors // getattr(flat, "ds.ring_attn_size") // getattr(flat, "ds.tensor_parallel_size")
    if n * batch // micro < replicas:
        raise UsageError(
            f"--rollout.micro_batch_size {micro}: a step's {n * batch} samples do not give each of {replicas} actor "
            "processes one such batch; lower it"
        )


def refuse(message: str) -> NoReturn:
    """``argparse.ArgumentParser.error`` as a UsageError, with types named in plain words."""
    text = message.removeprefix("argument ")
    for kind, words in (("int", "a whole number"), ("float", "a number"), ("_positive", "a whole number of at least 1")):
        text = text.replace(f"invalid {kind} value: ", f"expected {words}, not ")
    raise UsageError(text if len(text) < 500 else f"{text[:500]}...")
