"""Reading curves of accuracy against cost, whose points are evaluations: the first is of the initial model."""

from collections.abc import Sequence
from statistics import fmean, stdev

from openrlhf_rpo.reports.comparison import at, cost_of

Curve = Sequence[tuple[float, float]]
"""(generated tokens, accuracy) at each evaluation, starting at 0 tokens."""


def first_of(curve: Curve) -> float:
    """Tokens at the first evaluation after that of the initial model."""
    return curve[min(1, len(curve) - 1)][0]


def at_tokens(curve: Curve, budget: float) -> float | None:
    """Accuracy at ``budget`` generated tokens by linear interpolation; None before the first evaluation or past the end."""
    return at(curve, budget) if budget >= first_of(curve) else None


def cost_to(curves: Sequence[Curve], accuracy: float) -> list[float]:
    """The tokens at which each curve reaches an accuracy; empty if one never does, or does before its first evaluation."""
    costs = [cost for curve in curves if (cost := cost_of(curve, accuracy)) is not None and cost >= first_of(curve)]
    return costs if len(costs) == len(curves) else []


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """The mean of each point that all runs have: an arm's runs evaluate alike until dynamic sampling ends one."""
    return [[fmean(values) for values in zip(*points, strict=True)] for points in zip(*curves, strict=False)]


def spread(values: Sequence[float]) -> float:
    """Standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0
