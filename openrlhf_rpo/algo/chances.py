"""What a question can still teach: its samples' chance to be rewarded, estimated from its visits.

A group's advantages grow with how much its scores differ: on average p (1 - p), where p is a sample's chance. A group that
is all right or all wrong teaches nothing (GRESO, arXiv 2506.02177, finds that it stays so from epoch to epoch). p has a Beta
distribution, which the question's rewarded samples r and others w move away from the rate m of the run ::

    a = PRIOR m + sum r / 2^age,     b = PRIOR (1 - m) + sum w / 2^age,     ages in epochs
    signal = E[p (1 - p)] = a b / ((a + b) (a + b + 1))

and ``worth`` is signal per token; the tokens of a sample are estimated from the visits in the same way. A question never
asked is worth the run's average.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from openrlhf_rpo.types import Visit

PRIOR = 4.0
"""How many samples the run's rate counts as."""
REST = 1 / 8
"""Epochs before a question is asked again for its signal; otherwise a few would fill the run (arXiv 2603.21177)."""


@dataclass(slots=True)
class Seen:
    """Sums over the visits up to ``step``: rewarded and other samples, and generated tokens."""

    right: float = 0.0
    wrong: float = 0.0
    tokens: float = 0.0
    step: int = 0

    @property
    def samples(self) -> float:
        return self.right + self.wrong

    def add(self, visit: Visit, epoch: float) -> None:
        kept = 0.5 ** ((visit.step - self.step) / epoch)
        self.right = self.right * kept + visit.n_rewarded
        self.wrong = self.wrong * kept + visit.n_samples - visit.n_rewarded
        self.tokens = self.tokens * kept + visit.n_tokens
        self.step = visit.step


class Chances:
    """All questions of a run. ``epoch``: the steps of one pass over the data."""

    def __init__(self, epoch: float) -> None:
        self.epoch = epoch
        self.run = Seen()
        self.questions: dict[str, Seen] = {}

    def add(self, visits: Iterable[Visit]) -> None:
        """Learn from the visits of a step, in a fixed order, so that a resumed run repeats the rounding."""
        for visit in sorted(visits, key=lambda visit: (visit.step, visit.question_id)):
            self.run.add(visit, self.epoch)
            self.questions.setdefault(visit.question_id, Seen()).add(visit, self.epoch)

    def chance(self, question_id: str, step: int) -> float:
        """The mean of p at ``step``."""
        a, b, _ = self._posterior(question_id, step)
        return a / (a + b)

    def worth(self, question_id: str, step: int) -> float:
        """Expected signal per generated token at ``step``."""
        a, b, tokens = self._posterior(question_id, step)
        return a * b / ((a + b) * (a + b + 1)) / tokens

    def best(self, n: int, questions: Iterable[str], step: int) -> list[str]:
        """The ``n`` rested questions that are worth most, best first; among equals those that come first."""
        rested = (q for q in questions if q not in self.questions or step - self.questions[q].step > REST * self.epoch)
        return heapq.nsmallest(n, rested, key=lambda question_id: -self.worth(question_id, step))

    def _posterior(self, question_id: str, step: int) -> tuple[float, float, float]:
        """a, b, and the tokens of a sample."""
        run, seen = self.run, self.questions.get(question_id, Seen())
        rate, tokens = (run.right + 1) / (run.samples + 2), (run.tokens + 1) / (run.samples + 1)
        kept = 0.5 ** ((step - seen.step) / self.epoch)
        samples = kept * seen.samples
        expected = max(1.0, (PRIOR * tokens + kept * seen.tokens) / (PRIOR + samples))
        return PRIOR * rate + kept * seen.right, PRIOR * (1 - rate) + kept * seen.wrong, expected
