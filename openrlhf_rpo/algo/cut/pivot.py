"""A deep state of a wrong path from which the question can still be saved (DEEP-GRPO, arXiv 2602.14169).

A wrong path is as good as any up to its mistake. The deeper a group starts, the nearer its samples are to where the policy
went astray, and the fewer tokens they cost; but the likelier the mistake is behind them, and then nothing is learned. The
kept head has t tokens with the probability ::

    P(t) in proportion to t * exp(-c t / T),   T - L <= t < T

T is the wrong path's length and exp(-c k) what keeping the share k of it costs (``algo.history.mistake``), which the
question's earlier visits to its wrong paths tell: those that recovered push the pivot deeper, those that failed pull it
back. Example, T = 4, L = 4, c = 2 ln 2, hence a halving for every two tokens::

    P(1) : P(2) : P(3) = 1 * 0.71 : 2 * 0.5 : 3 * 0.35 = 0.26 : 0.36 : 0.38

DEEP-GRPO fits its chance of recovery over all questions by a logistic regression on the relative position; here it is the
question's own, by the model that the baseline ``history`` has.

Degenerate cases: L below 1, or a path of one token, leaves the bare question. A question without a stored wrong path
starts bare.

Choose it for questions that are sometimes wrong, where ``failure`` often starts behind the mistake or far before it.
"""

import math
from itertools import accumulate

from openrlhf_rpo.algo.cut.context import CutContext
from openrlhf_rpo.algo.cut.uniform import largest_cut
from openrlhf_rpo.algo.history import mistake


def pivot(context: CutContext) -> tuple[int, ...]:
    """m = T - t, t by depth times recoverability, for the group or for each sample."""
    length = len(context.path)
    depths = range(max(1, length - largest_cut(length, context.shortest_path, context.options)), length)
    if not depths:
        return (length,) * context.n_samples
    cumulated = list(accumulate(utilities(depths, length, mistake(context.visits))))
    return context.for_each_sample(lambda: length - context.generator.choices(depths, cum_weights=cumulated)[0])


def utilities(depths: range, length: int, cost: float) -> list[float]:
    """t exp(-c t / T) for every number of kept tokens t."""
    return [t * math.exp(-cost * t / length) for t in depths]
