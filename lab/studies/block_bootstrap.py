"""Confidence interval of a ratio of variances over steps, for correlated neighbouring steps.

Moving block bootstrap (Kuensch 1989): a series of n steps is resampled with replacement in blocks of about sqrt(n)
neighbouring steps, which preserves their correlation. Each run is resampled separately; the variance of several runs is the
mean of their variances.

Degenerate cases: equal series give the ratio 1 and an interval around it; the ratio to a constant series is undefined.
"""

import random
from collections.abc import Sequence
from math import isqrt
from statistics import fmean, variance

RESAMPLES = 2000


def variance_ratio(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], seed: int = 0
) -> tuple[float, float, float]:
    """Var(ours) / Var(theirs) and its 95 % interval, of one series per run with at least two steps.

    Raises ValueError if the variance of ``theirs`` is 0.
    """
    if pooled(theirs) == 0:
        raise ValueError("the variance in the denominator is 0: the series never changes")
    rng = random.Random(seed)
    ratios = []
    while len(ratios) < RESAMPLES:
        below = pooled([resample(series, rng) for series in theirs])
        if below > 0:
            ratios.append(pooled([resample(series, rng) for series in ours]) / below)
    ratios.sort()
    return pooled(ours) / pooled(theirs), ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1]


def pooled(runs: Sequence[Sequence[float]]) -> float:
    """The mean over runs of the (n - 1) variance over steps."""
    return fmean(variance(run) for run in runs)


def resample(series: Sequence[float], rng: random.Random) -> list[float]:
    """n steps in random blocks of isqrt(n) neighbours; the last block is cut to fit."""
    n, size = len(series), isqrt(len(series))
    drawn: list[float] = []
    while len(drawn) < n:
        start = rng.randrange(n - size + 1)
        drawn += series[start : start + size]
    return drawn[:n]
