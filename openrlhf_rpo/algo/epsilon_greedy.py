"""Which sample replaces the stored path (paper section 3.3).

::

    u ~ U(0, 1);  u <= epsilon: argmax R_i  (ties: the shorter path, then the first)
                  otherwise:    one of the *other* candidates, each equally likely

Epsilon is the probability of the *best* sample. With the paper's 0.1, a suboptimal path is stored most of the time. Example:
rewards 0.7, 0.9, 0.5, all candidates, epsilon 0.1: the second with probability 0.1, the others with 0.45 each.
Degenerate cases: a single candidate is always taken. ``off`` stores nothing and keeps the initial cache.
"""

import random
from collections.abc import Sequence


def pick(
    rewards: Sequence[float],
    path_lengths: Sequence[int],
    candidates: Sequence[int],
    epsilon: float,
    generator: random.Random,
) -> tuple[int, str]:
    """The index of the sample to store, and "best" or "random".

    ``rewards`` (shaped) and ``path_lengths`` (tokens) cover the whole group, ``candidates``, one or more, are indices in it.
    """
    best = min(candidates, key=lambda i: (-rewards[i], path_lengths[i], i))
    others = [i for i in candidates if i != best]
    u = generator.random()
    if u <= epsilon or not others:
        return best, "best"
    return generator.choice(others), "random"
