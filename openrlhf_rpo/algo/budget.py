"""How many tokens a sample may generate (spec section 3).

``remaining``: what the prefix leaves of the longest path::

    budget = max(1, max_path_length - prefix_length)

``factor:F``: in addition at most F times what was cut, but no less than a floor::

    budget = min(remaining, max(floor, ceil(F * cut)))

The reference code caps at m, which is ``factor:1``: above the floor, no response can then outgrow what it replaces.
A group without a cut (no cached path, or a fresh start) has nothing to be a factor of and gets ``remaining``;
an empty prefix with m = path length has a cut, and the factor applies.
"""

import math

from openrlhf_rpo.config import BudgetOptions


def token_budget(prefix_length: int, cut: int, max_path_length: int, options: BudgetOptions) -> int:
    """Tokens one sample may generate, at least 1, even when the prefix already fills ``max_path_length``.

    ``prefix_length``, ``cut`` (m) and ``max_path_length`` are in tokens.
    """
    remaining = max(1, max_path_length - prefix_length)
    kind, factor = options.parse()
    if kind == "remaining" or (prefix_length == 0 and cut == 0):
        return remaining
    wanted = math.ceil(factor * cut - 1e-9)  # 1.1 * 10 is 11.000000000000002 and means 11
    return min(remaining, max(options.floor, wanted))
