"""Length-aware reward shaping (paper section 3.4): a shorter right answer earns more than a longer one.

::

    R_i = clip( r_i / (1 + exp(-alpha * (l_ref - len_i))), m, M )

len_i is the path length in tokens (prefix and response), l_ref its mean over the group. Example, alpha 0.01, m 0.5, M 1, two
right answers of 100 and 300 tokens, so l_ref = 200::

    R_1 = 1 / (1 + exp(-0.01 * (200 - 100))) = 1 / (1 + exp(-1)) = 0.731
    R_2 = 1 / (1 + exp(-0.01 * (200 - 300))) = 1 / (1 + exp(+1)) = 0.269, clipped to 0.5

Degenerate cases: with equal lengths every r_i is halved, then clipped. ``scope all``, the literal equation, lifts a wrong
answer (r = 0) to m, the reward of a right answer longer than average. alpha = 0 turns shaping off: rewards are unchanged,
not halved.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.option import FINITE, NOT_NEGATIVE, need, option


@dataclass(frozen=True, kw_only=True)
class ShapingOptions:
    """Length-aware reward shaping; scores are never shaped."""

    alpha: float = option(0.0, "sensitivity to length; 0 turns shaping off; the paper: 0.01", bounds=NOT_NEGATIVE)
    min: float = option(0.5, "lower clip bound, the paper's m", bounds=FINITE)
    max: float = option(1.0, "upper clip bound, the paper's M", bounds=FINITE)
    scope: str = option(
        "rewarded",
        "rewarded: shape samples with a score above 0; all: the paper's equation, which also lifts wrong answers",
        choices=("rewarded", "all"),
    )

    def check(self) -> None:
        need(self.min <= self.max, "shaping.min", self.min, f"at most --rpo.shaping.max {self.max}")


def shape_rewards(
    rewards: Sequence[float],
    path_lengths: Sequence[int],
    options: ShapingOptions,
    scores: Sequence[float] | None = None,
) -> list[float]:
    """The shaped rewards of one group, in order, one length per reward.

    ``scores`` (default: the rewards) say which samples are right: a sum of rewards can be above 0 for a wrong answer in the
    right format.
    """
    if options.alpha == 0 or not rewards:
        return list(rewards)
    reference = fmean(path_lengths)
    return [
        _shape(reward, length, reference, options) if options.scope == "all" or rewarded(score) else reward
        for reward, length, score in zip(rewards, path_lengths, rewards if scores is None else scores, strict=True)
    ]


def _shape(reward: float, length: int, reference: float, options: ShapingOptions) -> float:
    shaped = reward * _logistic(options.alpha * (reference - length))
    return min(options.max, max(options.min, shaped))


def _logistic(x: float) -> float:
    """1 / (1 + exp(-x)) without overflow."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    e = math.exp(x)
    return e / (1 + e)
