"""The samples of a group start at several depths of one path: its branches, as in TreePO (arXiv 2508.17445).

The reach 1..L is split into D equal parts (``cut.depths``), and one cut is drawn from each, for G / D samples in a row::

    m_d = 1 + floor((d + u_d) * L / D),   u_d ~ U(0, 1),   d = 0..D - 1

so that every group has a short and a long way to go. Example, L = 100, D = 2, G = 4: two samples are cut somewhere
between 1 and 50, two somewhere between 51 and 100.

Degenerate cases: D = 1 is ``uniform`` without its m = 0. L below D repeats cuts. L below 1 leaves one token to write.

Choose it together with ``--rpo.advantage.baseline depth``: samples that start further back have a smaller chance, and a
mean over the whole group would blame them for it.
"""

import math

from openrlhf_rpo.algo.cut.context import CutContext
from openrlhf_rpo.algo.cut.uniform import largest_cut


def tree(context: CutContext) -> tuple[int, ...]:
    """One cut from each of ``cut.depths`` parts of 1..L, shortest first; samples of one depth follow each other."""
    options, n = context.options, context.n_samples
    depths = min(options.depths, n)
    reach = max(1, largest_cut(len(context.path), context.shortest_path, options))
    cuts = [min(reach, 1 + math.floor((d + context.generator.random()) * reach / depths)) for d in range(depths)]
    return tuple(cuts[i * depths // n] for i in range(n))
