"""Whether a group has signal: with equal values every centred advantage is 0.

Dynamic sampling (DAPO, section 3.2) tests the scores with it.
"""

from collections.abc import Sequence

CENTERED = frozenset({"group_norm", "rloo", "reinforce_baseline", "dr_grpo"})
"""The values of ``--algo.advantage.estimator`` that subtract a mean of the group (upstream,
trainer/ppo_utils/experience_maker.py)."""

TOLERANCE = 1e-9  # far above rounding errors of equal rewards, far below any meaningful difference


def rewarded(score: float) -> bool:
    """A sample is rewarded (right) when its score is above 0."""
    return score > 0


def has_signal(values: Sequence[float]) -> bool:
    """Whether the values differ by more than 1e-9. An empty group and a group of one have no signal."""
    return len(values) > 1 and max(values) - min(values) > TOLERANCE


def outcome(scores: Sequence[float]) -> str:
    """ "all_right", "all_wrong" or "mixed". Raises ValueError if there are no scores."""
    if not scores:
        raise ValueError("a group without samples has no outcome")
    n_rewarded = sum(rewarded(score) for score in scores)
    if n_rewarded == 0:
        return "all_wrong"
    return "all_right" if n_rewarded == len(scores) else "mixed"
