"""A cut where the policy was unsure: the response starts at token t with probability proportional to 1 - p_t.

p_t is the probability with which token t of the cached path was sampled when the path was stored. Most tokens of a
reasoning path are certain, and a cut before one of them gives samples that agree, hence no advantage; forking tokens
are rare (Wang et al. 2025, arXiv 2506.01939; LATR, arXiv 2510.24302). m is drawn from the cuts that ``uniform`` draws
from, 1..L::

    P(m) = (1 - p_{T-m}) / sum over 1 <= k <= L of (1 - p_{T-k}),   T = path length, tokens counted from 0

Example, a path of 4 tokens with p = 0.5, 1.0, 0.5, 1.0 and L = 4: m is 2 or 4, each with probability 1/2.

Degenerate cases: L below 1, a path without stored log-probs, or one without any unsure token within reach leaves
nothing to weigh, and the draw is ``uniform``'s.

Choose it where most groups of ``uniform`` have no reward variance. Stored probabilities age with the path.
"""

import math
from itertools import accumulate

from openrlhf_rpo.algo.cut.context import CutContext
from openrlhf_rpo.algo.cut.uniform import largest_cut, uniform


def uncertain(context: CutContext) -> tuple[int, ...]:
    """m from 1..L by the doubt at its token, for the group or for each sample."""
    largest = largest_cut(len(context.path), context.shortest_path, context.options)
    cumulated = list(accumulate(doubts(context.path.log_probs or (), largest)))
    if not cumulated or cumulated[-1] <= 0:
        return uniform(context)
    reach = range(1, len(cumulated) + 1)
    return context.for_each_sample(lambda: context.generator.choices(reach, cum_weights=cumulated)[0])


def doubts(log_probs: tuple[float, ...], largest: int) -> list[float]:
    """1 - p of the token at which the response would start, for the cuts m = 1, 2, ..., ``largest``."""
    return [-math.expm1(min(0.0, log_prob)) for log_prob in log_probs[::-1][:largest]]
