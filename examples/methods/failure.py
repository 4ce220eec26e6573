"""Start solved questions from one of their rare wrong paths (failure-prefix conditioning, arXiv 2601.20829).

    --rpo.method examples/methods/failure.py:Failure

A question that is nearly always answered correctly has no signal left on its own path. Its wrong paths lead to states where
the policy struggles, and training from there may be worth more. Besides the path that ``rpo`` stores, a uniformly drawn
wrong sample of each group is kept until another one replaces it. After an all-right group, the next one continues the wrong
path, cut as in ``rpo``.

Degenerate cases: an all-wrong group stores only a wrong path, and nothing before there is a right one. Without a wrong path
this is ``rpo``.

Measured on the testbed (24 steps of 16x4, three fresh seeds): 0.878 +- 0.026 on main (170k tokens, 54 s), 0.772 +- 0.046 on
hard (209k, 68 s); plain ``rpo`` 0.881 (162k, 54 s) and 0.794 (186k, 65 s). No difference that three seeds can show. Then
replays also went to questions without a right path, which start bare; without these it was not measured.
"""

from collections.abc import Sequence

from openrlhf_rpo.algo.methods import RPO, Choice, Scored, Stored
from openrlhf_rpo.types import Path

WRONG = 1  # the slot of the wrong path


class Failure(RPO):
    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        last = stored.last_visit
        if last and last.n_rewarded == last.n_samples and WRONG in stored.paths and not self.worn_out(stored.visits):
            return (stored.paths[WRONG],) * n_samples
        return super().paths(stored, n_samples)

    def store(self, group: Scored) -> Choice:
        own = super().store(group)
        if not group.wrong or not (own.samples or group.has_path):  # replayed, it would only start bare
            return own
        return Choice({**own.samples, WRONG: group.generator.choice(group.wrong)}, own.outcome, own.start_bare)
