"""Which questions a step asks, and why."""

import sys
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from openrlhf_rpo.algo.chances import Chances
from openrlhf_rpo.algo.draws import episode_order
from openrlhf_rpo.algo.methods import Method
from openrlhf_rpo.algo.methods.replay import n_replayed
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.rollout.questions import QuestionStream
from openrlhf_rpo.types import Begun, Question, Sample, Visit

BY_SIGNAL = 0.75
"""Share of a batch chosen by signal if the method replays none. The rest comes in turn, so none is left out for good."""


@dataclass(frozen=True)
class Asked:
    """A question of a step. ``reason``: its turn in the data, a stored path to replay, its signal, or an unfinished group.

    ``chance``: its samples' estimated chance, if chosen by signal. ``bare``: do not continue stored paths. ``begun``: the
    samples of its unfinished group.
    """

    question: Question
    reason: str
    chance: float | None = None
    bare: bool = False
    begun: tuple[Sample, ...] = ()


class Selection:
    """The questions of every step. Reads the cache, so that a resumed run asks the same ones.

    ``epoch``: the steps of one pass over the data; None: not by signal.
    """

    def __init__(self, stream: QuestionStream, cache: PathCache, method: Method, epoch: float | None) -> None:
        self.stream = stream
        self.cache = cache
        self.method = method
        self.epoch = epoch
        self.by_id = {q.question_id: q for q in stream.questions}
        self.chances: Chances | None = None

    @classmethod
    def of_run(cls, stream: QuestionStream, cache: PathCache, config: RPOConfig, batch_size: int) -> "Selection":
        epoch = len(stream.questions) / batch_size if config.select == "signal" else None
        return cls(stream, cache, config.method, epoch)

    def choose(
        self, n: int, exclude: Set[str], step: int, begun: Sequence[Begun] = (), in_flight: Set[str] = frozenset()
    ) -> list[Asked]:
        """``n`` questions that are not in ``exclude``; fewer at the end of the data, or if no more are left.

        All ``begun`` groups come first. Of the others, the method's share replays stored paths (least recently visited
        first); with signal, those worth most. ``in_flight``: questions of uncommitted batches; if it is their turn, they
        come once committed.
        """
        first = [self._go_on(group) for group in begun]
        in_flight = in_flight | {asked.question.question_id for asked in first}
        out = exclude | in_flight
        free = len(self.by_id) - len(out)  # a search for more would go on to the end of the data
        n = max(0, min(n - len(first), free))
        chosen = self._by_signal(n, out, step) if self.epoch else self._to_replay(n, out, step)
        exclude = exclude | {asked.question.question_id for asked in chosen}
        new = self.stream.take(n - len(chosen), exclude, in_flight)
        return first + chosen + [self._in_turn(question) for question in new]

    def learn(self, visits: Iterable[Visit]) -> None:
        """Take in a committed step's visits."""
        if self.chances is not None:
            self.chances.add(visits)

    def forget(self) -> None:
        """The cache was rolled back."""
        self.chances = None

    def _in_turn(self, question: Question) -> Asked:
        return Asked(question, "turn", bare=self.method.replay_share > 0)

    def _go_on(self, group: Begun) -> Asked:
        question, started = self.by_id[group.question_id], any(s.path_length for s in group.samples)
        if not started and group.asked == "turn":
            return self._in_turn(question)
        return Asked(question, group.asked, group.chance, begun=group.samples if started else ())

    def _to_replay(self, n: int, exclude: Set[str], step: int) -> list[Asked]:
        wanted = n_replayed(n, self.method.replay_share, step)
        ready = self.cache.least_recently_visited(wanted, exclude) if wanted else []
        return [Asked(self.by_id[question_id], "replay") for question_id in ready]

    def _by_signal(self, n: int, exclude: Set[str], step: int) -> list[Asked]:
        if self.chances is None:
            self.chances = Chances(self.epoch or 1.0)
            self.chances.add(self.cache.visits_after(0))
        wanted = n_replayed(n, self.method.replay_share or BY_SIGNAL, step)
        best = self.chances.best(wanted, self._candidates(exclude), step)
        return [Asked(self.by_id[name], "signal", self.chances.chance(name, step)) for name in best]

    def _candidates(self, exclude: Set[str]) -> Sequence[str]:
        if self.method.replay_share:
            return self.cache.least_recently_visited(sys.maxsize, exclude)
        questions, stream = self.stream.questions, self.stream
        ordered = (questions[i].question_id for i in episode_order(stream.seed, stream.episode, len(questions)))
        return [question_id for question_id in ordered if question_id not in exclude]
