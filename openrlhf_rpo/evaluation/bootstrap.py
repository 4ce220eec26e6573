"""Percentile bootstrap over questions: the uncertainty of a mean from the choice of questions.

Whole questions are resampled, because the samples of one question are correlated and an interval over single samples would
be too narrow. A paired comparison of two models draws the same questions for both, which cancels their difficulty. Source:
Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13.

Degenerate cases: one question, or equal values, give an interval of width 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
_BLOCK = 2_000_000  # drawn indices in memory at a time


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def interval(values: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES, tail: float = 0.025) -> Interval:
    """The mean of one value per question, with its 95 % interval. Raises ValueError without values.

    ``tail``: the share of the resampled means below the interval, and above it.
    """
    if not len(values):
        raise ValueError("the mean of no questions is not defined")
    array, generator = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    rows = max(1, _BLOCK // len(array))
    means = [
        array[generator.integers(len(array), size=(min(rows, resamples - start), len(array)))].mean(axis=1)
        for start in range(0, resamples, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(array.mean()), float(low), float(high))


def paired_difference(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Interval:
    """The mean of ours - theirs, both in the same order of questions. Raises ValueError for unequal lengths."""
    return interval([a - b for a, b in zip(ours, theirs, strict=True)], seed=seed)
