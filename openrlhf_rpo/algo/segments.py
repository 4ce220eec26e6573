"""What the stretches of a stored path were worth, told by the samples that start at their ends.

Segment Policy Optimization (arXiv 2505.23564) estimates the value of states along a path by sampling from them, and credits
the tokens between two states with the difference. The samples of a group that start at several depths of one path (cut rule
``tree``, ``--rpo.cut.scope sample``) are such estimates already::

    V(d) = mean of r_i over the samples i that start at depth d
    A of the tokens d_k + 1 .. d_k+1 of the stored path = V(d_k+1) - V(d_k),   d_1 < d_2 < ... the group's depths

Example, rewards 1, 1, 0, 1 at depths 50, 50, 10, 10: V(50) = 1, V(10) = 1/2, so tokens 11 to 50 of the path are worth 1/2.

A segment is trained on in the samples that start at its end (``--rpo.prefix_loss.mode segment``). What precedes the
shallowest depth, and the prefix of a group that starts at one depth, carries no loss. The tokens are an earlier policy's,
and the loss takes them as the current one's, as ``include`` does.
"""

from collections.abc import Sequence
from statistics import fmean


def segment_starts(depths: Sequence[int]) -> list[int]:
    """For each sample the group's next smaller depth, in tokens; its own where there is none."""
    return [max((other for other in depths if other < depth), default=depth) for depth in depths]


def segment_advantages(rewards: Sequence[float], depths: Sequence[int]) -> list[float]:
    """For each sample V(its depth) - V(the next smaller one); 0 where there is none."""
    values = {depth: fmean(r for r, d in zip(rewards, depths, strict=True) if d == depth) for depth in set(depths)}
    return [values[depth] - values[start] for depth, start in zip(depths, segment_starts(depths), strict=True)]
