"""A cut at which about ``target`` of the samples should succeed: questions that go well reveal less of their path.

After AdaBack (arXiv 2506.18110), which moves the revealed share of a solution until a target rate is met; here the
newest visit tells where to move, by a model in which every token carries the same risk. A group that had to write the
share s of its path itself and succeeded at the rate q tells that risk, q = p**s, and the share at which the target rate
t is expected, p**s' = t::

    s' = s * ln t / ln q,   q = (rewarded + 1/2) / (samples + 1)

m is drawn evenly from 1 to 2 s' T tokens, T being the path's length, so that its mean is s' T; it is at most L, and L is
at most T. Example, a path of 100 tokens cut by 40 at the last visit, 1 of 4 samples rewarded, t = 0.5::

    q = 0.3, s' = 0.4 * 0.693 / 1.204 = 0.23, and m is 1 to 46

Degenerate cases: a question that was never visited (an initial cache), or whose last group continued a wrong path, is cut
as ``uniform`` cuts it. After a bare group s is 1. All right and all wrong leave q inside (0, 1), so that s' is never zero
and never infinite.

Choose it where a fixed L is too short for easy questions (their groups agree) and too long for hard ones.
"""

import math

from openrlhf_rpo.algo.cut.context import CutContext
from openrlhf_rpo.algo.cut.uniform import largest_cut, uniform
from openrlhf_rpo.algo.history import share_to_write, success_rate
from openrlhf_rpo.types import WRONG, Visit


def adaptive(context: CutContext) -> tuple[int, ...]:
    """m evenly from 1 to 2 s' T, for the group or for each sample."""
    if context.last_visit is None or context.last_visit.slot == WRONG:
        return uniform(context)
    wanted = 2 * wanted_share(context.last_visit, context.options.target) * len(context.path)
    reach = largest_cut(len(context.path), context.shortest_path, context.options)
    largest = max(1, min(math.floor(wanted), reach))
    return context.for_each_sample(lambda: context.generator.randint(1, largest))


def wanted_share(visit: Visit, target: float) -> float:
    """s': share of a path to write anew so that about ``target`` of the samples succeed; may exceed 1."""
    return share_to_write(visit.cut, visit.prefix_length) * math.log(target) / math.log(success_rate(visit))
