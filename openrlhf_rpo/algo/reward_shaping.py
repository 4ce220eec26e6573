"""Length-aware reward shaping (paper section 3.4, spec section 4): of two right answers the shorter earns more.

::

    R_i = clip( r_i / (1 + exp(-alpha * (l_ref - len_i))), m, M )

len_i is the path length in tokens, prefix and response; l_ref is its mean over the group, or over its rewarded
samples. Example, alpha 0.01, m 0.5, M 1, two right answers of 100 and 300 tokens, so l_ref = 200::

    R_1 = 1 / (1 + exp(-0.01 * (200 - 100))) = 1 / (1 + exp(-1)) = 0.731
    R_2 = 1 / (1 + exp(-0.01 * (200 - 300))) = 1 / (1 + exp(+1)) = 0.269, clipped to 0.5

Degenerate cases: with equal lengths every r_i is halved, then clipped. ``scope all``, the literal equation, lifts a
wrong answer (r = 0) to m, the reward of a right answer of more than average length. Without any rewarded sample
``scope rewarded`` has nothing to shape, and ``reference rewarded`` falls back to the group's mean. alpha = 0 means
off: rewards come back as they are, not halved.
"""

import math
from collections.abc import Sequence

from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.config import ShapingOptions


def shape_rewards(
    rewards: Sequence[float],
    path_lengths: Sequence[int],
    options: ShapingOptions,
    scores: Sequence[float] | None = None,
) -> list[float]:
    """The shaped rewards of one group, in its order. Raises ValueError unless there is one length a reward.

    ``scores`` tell which samples are right, and are the rewards themselves unless given: a sum of rewards can be above 0
    for a wrong answer in the right format.
    """
    if len(rewards) != len(path_lengths):
        raise ValueError(f"{len(rewards)} rewards but {len(path_lengths)} path lengths")
    if options.alpha == 0 or not rewards:
        return list(rewards)
    right = [rewarded(score) for score in (rewards if scores is None else scores)]
    reference = _reference_length(right, path_lengths, options.reference)
    return [
        _shape(reward, length, reference, options) if options.scope == "all" or is_right else reward
        for reward, length, is_right in zip(rewards, path_lengths, right, strict=True)
    ]


def _reference_length(right: Sequence[bool], path_lengths: Sequence[int], reference: str) -> float:
    """l_ref in tokens."""
    of_right = [length for is_right, length in zip(right, path_lengths, strict=True) if is_right]
    chosen = of_right if reference == "rewarded" and of_right else path_lengths
    return sum(chosen) / len(chosen)


def _shape(reward: float, length: int, reference: float, options: ShapingOptions) -> float:
    shaped = reward * _logistic(options.alpha * (reference - length))
    return min(options.max, max(options.min, shaped))


def _logistic(x: float) -> float:
    """1 / (1 + exp(-x)), exponentiating only negative numbers, so that nothing overflows."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    e = math.exp(x)
    return e / (1 + e)
