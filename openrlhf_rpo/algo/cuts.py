"""Where a stored path is cut: the paper's uniform draw, and one that prefers tokens the policy was unsure of.

m is the number of tokens dropped from the end of a path of T tokens. L is the largest cut: N tokens (``fixed:N``) or
floor(R * l) (``ratio:R``), where l is the shortest path of the question's last group; never more than T.

*Uniform* (paper section 3.2, equations 3 and 4)::

    m ~ U{0, ..., L}, both ends included

Example, T = 10, l = 8, ``ratio:0.5``: L = 4, and m is 0, 1, 2, 3 or 4, each with probability 1/5. If the path ends in an end
token, a draw of 0 counts as 1.

*Uncertain*: the response starts at a token with probability proportional to 1 - p, where p is the probability of that token
when it was sampled. Most tokens of a reasoning path are near certain, and samples that branch there tend to agree, so the
group has no signal; forking tokens are rare (arXiv 2506.01939, 2510.24302)::

    P(m) = (1 - p_{T-m}) / sum over 1 <= k <= L of (1 - p_{T-k}),   tokens counted from 0

Example, T = 4 with p = 0.5, 1.0, 0.5, 1.0 and L = 4: m is 2 or 4, each with probability 1/2.

Degenerate cases: m = T drops everything, which is plain GRPO. A path that ends in an end token always loses that token
(``methods/prefixes.py``); otherwise there would be nothing to generate. Without log-probs, or when every token within reach
is certain, ``uncertain`` falls back to ``uniform``.
"""

import math
import random
from collections.abc import Sequence
from itertools import accumulate

from openrlhf_rpo.option import NOT_NEGATIVE, Bounds, parse_amount


def parse_largest(rule: str) -> tuple[str, float]:
    """("ratio", R) or ("fixed", N) of ``--rpo.cut.max``. Raises OptionError."""
    return parse_amount("cut.max", rule, {"ratio": Bounds(0, 1, (True, False)), "fixed": NOT_NEGATIVE})


def largest_cut(rule: str, path_length: int, shortest_path: int) -> int:
    """L for a stored path; all lengths are in tokens, and ``shortest_path`` is l."""
    kind, value = parse_largest(rule)
    wanted = value if kind == "fixed" else value * shortest_path
    return math.floor(min(path_length, wanted) + 1e-9)  # 0.29 * 100 is 28.999999999999996 and means 29


def uniform(largest: int, generator: random.Random) -> int:
    """m from 0..``largest``."""
    return generator.randint(0, largest)


def uncertain(log_probs: Sequence[float] | None, largest: int, generator: random.Random) -> int:
    """m from 1..``largest``; ``log_probs`` are those stored with the path."""
    reached = (log_probs or ())[::-1][:largest]  # of the token where the response would start, for m = 1, 2, ...
    cumulated = list(accumulate(-math.expm1(min(0.0, log_prob)) for log_prob in reached))
    if not cumulated or cumulated[-1] <= 0:
        return uniform(largest, generator)
    return generator.choices(range(1, len(cumulated) + 1), cum_weights=cumulated)[0]
