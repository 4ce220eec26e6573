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
off: scores come back as they are, not halved.
"""

import math
from collections.abc import Sequence

from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.config import ShapingOptions


def shape_rewards(scores: Sequence[float], path_lengths: Sequence[int], options: ShapingOptions) -> list[float]:
    """The shaped rewards of one group, in its order. Raises ValueError unless there is one length a score."""
    if len(scores) != len(path_lengths):
        raise ValueError(f"{len(scores)} scores but {len(path_lengths)} path lengths")
    if options.alpha == 0 or not scores:
        return list(scores)
    reference = _reference_length(scores, path_lengths, options.reference)
    return [
        _shape(score, length, reference, options) if options.scope == "all" or rewarded(score) else score
        for score, length in zip(scores, path_lengths, strict=True)
    ]


def _reference_length(scores: Sequence[float], path_lengths: Sequence[int], reference: str) -> float:
    """l_ref in tokens."""
    right = [length for score, length in zip(scores, path_lengths, strict=True) if rewarded(score)]
    chosen = right if reference == "rewarded" and right else path_lengths
    return sum(chosen) / len(chosen)


def _shape(score: float, length: int, reference: float, options: ShapingOptions) -> float:
    shaped = score * _logistic(options.alpha * (reference - length))
    return min(options.max, max(options.min, shaped))


def _logistic(x: float) -> float:
    """1 / (1 + exp(-x)), exponentiating only negative numbers, so that nothing overflows."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    e = math.exp(x)
    return e / (1 + e)
