"""What a group says: whether its values differ at all, and whether it was right (spec sections 5 and 8).

With equal values every centred advantage is 0 and the group teaches nothing. Dynamic sampling (DAPO, section 3.2)
asks this of the scores, or of the shaped rewards.
"""

from collections.abc import Sequence
from typing import Literal

TOLERANCE = 1e-9  # far above rounding errors of equal rewards, far below any difference that means something

Outcome = Literal["all_right", "all_wrong", "mixed"]


def rewarded(score: float) -> bool:
    """A sample is rewarded (right) when its score is above 0."""
    return score > 0


def has_signal(values: Sequence[float]) -> bool:
    """Whether the values differ by more than 1e-9. An empty group and a group of one have no signal."""
    return len(values) > 1 and max(values) - min(values) > TOLERANCE


def is_starved(n_tried: int, n_questions: int, n_missing: int, limit: int) -> bool:
    """Whether dynamic sampling gives up: ``limit`` questions were tried, or too few are left for the ``n_missing`` groups.

    A question is tried once a step, so a small data set may be used up before the limit.
    """
    return n_tried >= limit or n_questions - n_tried < n_missing


def outcome(scores: Sequence[float]) -> Outcome:
    """ "all_right", "all_wrong" or "mixed", of a group's scores. Raises ValueError when there are none."""
    if not scores:
        raise ValueError("a group without samples has no outcome")
    n_rewarded = sum(rewarded(score) for score in scores)
    if n_rewarded == 0:
        return "all_wrong"
    return "all_right" if n_rewarded == len(scores) else "mixed"
