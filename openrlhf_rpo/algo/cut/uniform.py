"""The paper's cut: m ~ U{0, ..., L}, both ends included (paper section 3.2, equations 3 and 4; spec section 2).

L is N tokens (``fixed:N``) or floor(R * l) (``ratio:R``), l being the shortest path of the question's last group, and
never more than the cached path's length. Example, a cached path of 10 tokens, l = 8, ``ratio:0.5``::

    L = 4, and m is 0, 1, 2, 3 or 4, each with probability 1/5

Degenerate cases: m = path length drops everything, which is plain GRPO. A path that ends in an end token always loses
at least that token, or nothing could be generated: m = 0 becomes m = 1, also when L = 0.
"""

import math

from openrlhf_rpo.algo.cut.context import CutContext
from openrlhf_rpo.config import CutOptions


def uniform(context: CutContext) -> tuple[int, ...]:
    """m ~ U{0..L}, for the group or for each sample."""
    return context.for_each_sample(lambda: _draw(context))


def largest_cut(path_length: int, shortest_path: int, options: CutOptions) -> int:
    """L in tokens, of a cached path of ``path_length`` tokens; ``shortest_path`` is l."""
    kind, value = options.parse_max()
    wanted = value if kind == "fixed" else value * shortest_path
    return math.floor(min(path_length, wanted) + 1e-9)  # 0.29 * 100 is 28.999999999999996 and means 29


def _draw(context: CutContext) -> int:
    largest = largest_cut(len(context.path), context.shortest_path, context.options)
    cut = context.generator.randint(0, largest)
    return max(cut, 1) if context.ends_with_end_token else cut
