"""Cosine-scaled length reward: a short right answer is worth more, a long wrong answer costs less.

    progress = min(length / max_len, 1)
    reward   = end + (start - end) * (1 + cos(pi * progress)) / 2

with (start, end) = (max_value_correct, min_value_correct) for a right answer and (min_value_wrong, max_value_wrong)
for a wrong one. Source: Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373),
with the defaults of open-r1 and open-rs.

Lengths are tokens; the reference counts characters. Beyond ``max_len`` the reward stays at its end; the reference's
cosine turns back there, so that twice ``max_len`` is worth as much as nothing at all.
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
    """The reward of an answer of ``length`` tokens. Raises ValueError unless ``max_len`` is above 0."""
    if max_len <= 0:
        raise ValueError(f"max_len must be above 0 tokens, not {max_len}")
    start, end = (max_value_correct, min_value_correct) if correct else (min_value_wrong, max_value_wrong)
    progress = min(length / max_len, 1.0)
    return end + (start - end) * (1.0 + math.cos(math.pi * progress)) / 2
