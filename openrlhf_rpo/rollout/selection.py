"""Which questions a step asks, and why."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from openrlhf_rpo.algo.methods import Method
from openrlhf_rpo.algo.methods.replay import n_replayed
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.rollout.questions import QuestionStream
from openrlhf_rpo.types import Begun, Question, Sample


@dataclass(frozen=True)
class Asked:
    """A question of a step. ``reason``: its turn in the data, a stored path to replay, or an unfinished group.

    ``bare``: do not continue stored paths. ``begun``: the samples of its unfinished group.
    """

    question: Question
    reason: str
    bare: bool = False
    begun: tuple[Sample, ...] = ()


class Selection:
    """The questions of every step. Reads the cache, so that a resumed run asks the same ones."""

    def __init__(self, stream: QuestionStream, cache: PathCache, method: Method) -> None:
        self.stream = stream
        self.cache = cache
        self.method = method
        self.by_id = {q.question_id: q for q in stream.questions}

    def choose(
        self, n: int, exclude: Set[str], step: int, begun: Sequence[Begun] = (), in_flight: Set[str] = frozenset()
    ) -> list[Asked]:
        """``n`` questions that are not in ``exclude``; fewer at the end of the data, or if no more are left.

        All ``begun`` groups come first. Of the others, the method's share replays stored paths, least recently visited
        first. ``in_flight``: questions of uncommitted batches; if it is their turn, they come once committed.
        """
        first = [self._go_on(group) for group in begun]
        in_flight = in_flight | {asked.question.question_id for asked in first}
        out = exclude | in_flight
        free = len(self.by_id) - len(out)  # a search for more would go on to the end of the data
        n = max(0, min(n - len(first), free))
        replayed = self._to_replay(n, out, step)
        exclude = exclude | {asked.question.question_id for asked in replayed}
        new = self.stream.take(n - len(replayed), exclude, in_flight)
        return first + replayed + [self._in_turn(question) for question in new]

    def _in_turn(self, question: Question) -> Asked:
        return Asked(question, "turn", bare=self.method.replay_share > 0)

    def _go_on(self, group: Begun) -> Asked:
        question, started = self.by_id[group.question_id], any(s.path_length for s in group.samples)
        if not started and group.asked == "turn":
            return self._in_turn(question)
        return Asked(question, group.asked, begun=group.samples if started else ())

    def _to_replay(self, n: int, exclude: Set[str], step: int) -> list[Asked]:
        wanted = n_replayed(n, self.method.replay_share, step)
        ready = self.cache.least_recently_visited(wanted, exclude) if wanted else []
        return [Asked(self.by_id[question_id], "replay") for question_id in ready]
