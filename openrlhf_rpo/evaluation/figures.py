"""The figures of an evaluation from the samples of each question, and the comparison of two evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from operator import gt, lt
from statistics import fmean, stdev
from typing import Any

from openrlhf_rpo.evaluation.bootstrap import interval, paired_difference
from openrlhf_rpo.evaluation.pass_at_k import pass_at_k

Part = Mapping[str, Any]
"""One question: ``scores`` (from the reward function), ``tokens`` and ``truncated`` of its samples, in order.

If another judge gave the scores, ``rewards`` holds those of the reward function.
"""

_FEWEST = 6  # questions that differ; 5 all differ one way by chance in 1 of 16 cases (sign test), too often for 95 %


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n: the default k of pass@k."""
    return [2**i for i in range(n.bit_length())]


def summary(parts: Sequence[Part], repeats: int, ks: Sequence[int]) -> dict[str, Any]:
    """The figures of one model on one data set. A sample is right if its score is above 0.

    ``accuracy`` is over all samples, ``interval`` its 95 % bootstrap interval over questions. Each of the ``repeats`` is an
    equal share of every question's samples; ``repeat_sd`` is the standard deviation of their accuracies, None for one.
    Lengths are in tokens, including the end token. Raises ValueError without questions.
    """
    n = len(parts[0]["scores"]) if parts else 0
    size = n // repeats
    by_repeat = [fmean(_right(p["scores"][r * size : (r + 1) * size]) for p in parts) for r in range(repeats)]
    tokens = [(t, s > 0) for p in parts for t, s in zip(p["tokens"], p["scores"], strict=True)]
    bounds = interval(accuracies(parts))
    return {
        "questions": len(parts),
        "samples": n,
        "accuracy": bounds.mean,
        "interval": [bounds.low, bounds.high],
        "repeat_sd": stdev(by_repeat) if repeats > 1 else None,
        "by_repeat": by_repeat,
        "score": fmean(s for p in parts for s in p.get("rewards", p["scores"])),
        "agreement": _agreement(parts),
        "pass_at_k": {str(k): fmean(pass_at_k(n, sum(s > 0 for s in p["scores"]), k) for p in parts) for k in ks},
        "tokens": fmean(t for t, _ in tokens),
        "tokens_right": _mean_or_none([t for t, right in tokens if right]),
        "tokens_wrong": _mean_or_none([t for t, right in tokens if not right]),
        "tokens_max": max(t for t, _ in tokens),
        "truncated": fmean(t for p in parts for t in p["truncated"]),
    }


def accuracies(parts: Sequence[Part]) -> list[float]:
    """Each question's share of right samples."""
    return [_right(p["scores"]) for p in parts]


def compare(ours: Mapping[str, Part], theirs: Mapping[str, Part]) -> dict[str, Any]:
    """Accuracy of ``ours`` minus ``theirs`` over the same questions (by id), with the paired 95 % interval.

    Significant if the interval excludes 0 and ``_FEWEST`` questions or more are better or worse; ties say nothing.
    Raises ValueError if the questions are not the same.
    """
    if ours.keys() != theirs.keys():
        shared = len(ours.keys() & theirs.keys())
        raise ValueError(f"the questions differ: {len(ours)} and {len(theirs)}, of which {shared} are the same")
    names = sorted(ours)
    a, b = (accuracies([parts[name] for name in names]) for parts in (ours, theirs))
    difference = paired_difference(a, b)
    counts = {"better": sum(map(gt, a, b)), "worse": sum(map(lt, a, b))}
    return asdict(difference) | counts | {"significant": difference.excludes_zero and sum(counts.values()) >= _FEWEST}


def _right(scores: Sequence[float]) -> float:
    return sum(score > 0 for score in scores) / len(scores)


def _agreement(parts: Sequence[Part]) -> float | None:
    pairs = [pair for p in parts for pair in zip(p["scores"], p.get("rewards", ()), strict=False)]
    return _mean_or_none([(score > 0) == (reward > 0) for score, reward in pairs])


def _mean_or_none(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
