"""Cosine-scaled length reward: shorter right answers earn more, longer wrong answers lose less.

    progress = min(length / max_len, 1)
    reward   = end + (start - end) * (1 + cos(pi * progress)) / 2

with (start, end) = (max_value_correct, min_value_correct) for a right answer and (min_value_wrong, max_value_wrong)
for a wrong one. Source: Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373),
with the defaults of open-r1 and open-rs.

Lengths are in tokens; the reference counts characters. Beyond ``max_len`` the reward is constant; in the reference the
cosine turns back, so that 2 * ``max_len`` earns as much as length 0.
"""

import math


def cosine_reward(
    correct: bool,
    length: int,
    *,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
    max_len: int = 1000,
) -> float:
    """The reward of an answer of ``length`` tokens; ``max_len`` is above 0."""
    start, end = (max_value_correct, min_value_correct) if correct else (min_value_wrong, max_value_wrong)
    progress = min(length / max_len, 1.0)
    return end + (start - end) * (1.0 + math.cos(math.pi * progress)) / 2
