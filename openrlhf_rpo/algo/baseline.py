"""What a sample's reward is compared with when the samples of a group start at different depths of a path.

A sample that starts near the end of a right path succeeds more often than one that starts far back. Against a mean over
the whole group the first is praised, the second blamed, for where they were put. So each is compared with those that had
its chance, leave-one-out (RLOO, arXiv 2402.14740, within one depth)::

    b_i = mean of r_j over j != i with depth_j = depth_i;   over all j != i where there is no such j

Example, rewards 1, 0, 1, 1 at depths 50, 50, 10, 10: b = 0, 1, 1, 1, hence r - b = 1, -1, 0, 0. The mean over the group
is 0.75, and both samples at depth 10 would have been credited with 0.25.

Law: b_i does not depend on the response of sample i, so the policy gradient keeps its expectation. With one depth for the
group r_i - b_i is G / (G - 1) times r_i - mean(r), and an estimator that divides by the standard deviation does not see it.

A group whose rewards are all equal says nothing by itself, but it says something against the question's history. With
``history`` the mean above has WORTH more samples, whose reward is the chance that the question's earlier visits give to this
cut (a posterior mean, v_i from ``algo.history.expected_score``)::

    b_i = (WORTH v_i + sum of those r_j) / (WORTH + number of them)

With ``zero`` there is none, not the estimator's either: a sample's advantage is its reward. With rewards 0 and 1 the right
samples are learned from, also where the whole group is right, and wrong ones are not held against anything (RAFT, arXiv
2304.06767; REINFORCE without a baseline, so the gradient has the same expectation). See ``training/experience_maker.py``.
"""

from collections.abc import Sequence
from statistics import fmean

WORTH = 2.0  # samples that the history counts for


def depth_baselines(rewards: Sequence[float], depths: Sequence[int]) -> list[float]:
    """b_i of one group's samples; ``depths`` are prefix lengths in tokens. A single sample has the baseline 0."""
    return [fmean(compared) if compared else 0.0 for compared in _compared(rewards, depths)]


def history_baselines(rewards: Sequence[float], depths: Sequence[int], expected: Sequence[float]) -> list[float]:
    """b_i of one group's samples with v_i = ``expected``, in the unit of a right answer's reward (1)."""
    return [
        (WORTH * value + sum(compared)) / (WORTH + len(compared))
        for value, compared in zip(expected, _compared(rewards, depths), strict=True)
    ]


def _compared(rewards: Sequence[float], depths: Sequence[int]) -> list[list[float]]:
    """For each sample the rewards of the others at its depth, of all others where there is none."""
    found = []
    for i, depth in enumerate(depths):
        others = [j for j in range(len(rewards)) if j != i]
        found.append([rewards[j] for j in others if depths[j] == depth] or [rewards[j] for j in others])
    return found
