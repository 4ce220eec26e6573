"""What enters the cache after a step: one rule a file, chosen by ``--rpo.update.rule``."""

import random
from collections.abc import Callable, Sequence

from openrlhf_rpo.algo.update.epsilon_greedy import epsilon_greedy

UpdateRule = Callable[[Sequence[float], Sequence[int], Sequence[int], float, random.Random], tuple[int, str]]
"""(rewards, path lengths, candidates, epsilon, generator) -> (index of the sample, why)."""

UPDATE_RULES: dict[str, UpdateRule] = {
    "epsilon_greedy": epsilon_greedy,  # the best with probability epsilon, else another one (RPO)
}

__all__ = ["UPDATE_RULES", "UpdateRule"]
