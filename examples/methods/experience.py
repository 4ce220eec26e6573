"""Experience replay: steps also train on right answers of earlier steps, which cost one new token each.

    --rpo.method examples/methods/experience.py:Experience --rpo.preset raft --rollout.n_samples_per_prompt 1

After RLEP (arXiv 2507.07451) and ExGRPO (arXiv 2510.02245). A replayed sample is a stored right answer but for its last
token, which the current policy draws again, so that the reward judges it like any other. The whole path carries loss. As in
TOPR (arXiv 2503.14286), right samples of an earlier policy get no importance weight: a weight p / q would silence exactly
the answers that the policy has moved away from.

Only right answers are learned from: with a baseline, a replayed answer, nearly always right, is compared with others like
it and teaches nothing.

Measured on the testbed (level hard, two seeds, validation questions; 16 questions a step, 32 steps, 5e-4 and 2.5e-4): 0.74
and 0.73 at 30k generated tokens, 0.78 and 0.80 at the end (41k). ``verify`` in the same steps: 0.72 and 0.81 at 30k, 0.82
and 0.90 at the end (75k and 60k). So it is at most as good for the same tokens, and levels off lower: it sees a quarter as
many new questions.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import ClassVar

from openrlhf_rpo.algo.methods import Choice, Cut, Replay, Scored, Stored
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import Path


class Experience(Replay):
    sets: ClassVar[Mapping[str, object]] = {"algo.advantage.is_correction_level": "off"}

    def check_run(self, args: SimpleNamespace) -> None:
        super().check_run(args)
        if args.rpo.advantage.baseline != "zero":
            raise UsageError(
                "right answers that are replayed teach nothing when they are compared with each other: add --rpo.preset raft"
            )
        if args.algo.advantage.is_correction_level != "off":  # asynchronous runs turn it on
            raise UsageError("Experience trains without importance weights: add --algo.advantage.is_correction_level off")

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        return () if self.worn_out(stored.visits) else stored.in_turn(n_samples)

    def cuts(self, cut: Cut) -> Sequence[int]:
        return cut.alike(lambda: 1)

    def loss_from(self, prefix_lengths: Sequence[int]) -> Sequence[int]:
        return [0] * len(prefix_lengths)

    def store(self, group: Scored) -> Choice:
        if not group.right:
            return Choice({}, "no_rewarded_sample", start_bare=group.has_path)
        return Choice(dict(enumerate(group.right)), "rewarded")
