"""Compare a group with the question's earlier visits, so that all-right and all-wrong groups have signal too.

    --rpo.method examples/methods/history.py:History --algo.advantage.estimator reinforce

Compared with its own mean, an all-right or all-wrong group has no signal; compared with the question's history it does. A
sample's baseline is the mean of the others' rewards and of WORTH pseudo-samples with the expected reward v_i::

    b_i = (WORTH v_i + sum of r_j over j != i) / (WORTH + number of them)
    v_i = exp(-risk * share of the path that i writes itself)

The risk is the same for every part of a path. It is fitted by least squares to the visits' success rates; each visit counts
half as much as the next newer one. Example, one visit that wrote half and was right in 1 of 4: q = 1.5 / 5, risk = 2.41, so
v = 0.30 for a half, 0.55 for a quarter, 0.09 from the bare question.

b_i does not depend on sample i, so the expected gradient is unchanged. v_i assumes a reward of 1 for a right answer. An
estimator that subtracts the group's mean again would cancel the baseline, so the estimator must be reinforce.

Degenerate cases: without visits a whole path succeeds with probability 1/2; a visit that kept its whole path is ignored.

Measured on the testbed (16 steps of 16x4, five fresh seeds): 0.856 +- 0.046 on main (110k tokens, 36 s), 0.735 +- 0.027 on
hard (123k, 46 s); with averaged weights 0.872 and 0.772. ``rpo`` with group_norm, 24 steps: 0.881 (162k, 54 s) and 0.794
(186k, 65 s). It allows a shorter run, and little else.
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_rpo.algo.methods import RPO
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import Group, Visit

WORTH = 2.0  # how many samples the history counts for
CENTERING = ("group_norm", "rloo", "dr_grpo", "reinforce_baseline")


class History(RPO):
    @property
    def reads_history(self) -> bool:
        return True

    def check_run(self, args: SimpleNamespace) -> None:
        super().check_run(args)
        if (estimator := args.algo.advantage.estimator) in CENTERING:
            raise UsageError(
                f"--algo.advantage.estimator {estimator} subtracts the group's mean and so cancels what History adds: "
                "add --algo.advantage.estimator reinforce"
            )

    def baselines(self, group: Group, rewards: Sequence[float]) -> list[float]:
        promised = [
            expected_score(group.visits, share_to_write(sample.prefix.cut, len(sample.prefix))) for sample in group.samples
        ]
        total, others = sum(rewards), len(rewards) - 1
        return [(WORTH * v + total - r) / (WORTH + others) for v, r in zip(promised, rewards, strict=True)]


def share_to_write(cut: int, prefix_length: int) -> float:
    """The share of the cut path's tokens that a sample writes itself; 1 from the bare question."""
    return cut / (cut + prefix_length) if prefix_length else 1.0


def expected_score(visits: Sequence[Visit], share: float) -> float:
    """v, the success probability of a sample that writes ``share`` of its path; ``visits`` are oldest first."""
    points = [(share_to_write(v.cut, v.prefix_length), (v.n_rewarded + 0.5) / (v.n_samples + 1)) for v in visits]
    weights = [0.5 ** (len(points) - 1 - i) for i in range(len(points))]
    known = sum(w * s * s for w, (s, _) in zip(weights, points, strict=True))
    fitted = sum(w * s * -math.log(q) for w, (s, q) in zip(weights, points, strict=True))
    return math.exp(-(fitted / known if known else math.log(2)) * share)
