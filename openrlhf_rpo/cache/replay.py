"""The order in which cached paths are replayed, kept up to date step by step."""

import itertools
from collections import OrderedDict
from collections.abc import Sequence, Set

from sqlalchemy import select
from sqlalchemy.orm import Session

from openrlhf_rpo.cache.models import PathRow, VisitRow
from openrlhf_rpo.cache.rows import last_visits
from openrlhf_rpo.types import OWN, CacheDecision


class ReplayQueue:
    """The questions that have a path, ordered by their last visit (never visited first), then by question id.

    Loaded once from the database; then each step moves the questions it visited to the end, so its cost does not grow
    with the cache. A question whose last visit has ``start_bare`` keeps its place but is skipped. One that has paths only in
    other slots than its own (``foreign``) joins at its first visit, which would be bare.
    """

    def __init__(self, ordered: Sequence[str], bare: Set[str], foreign: Set[str]) -> None:
        self._waiting: OrderedDict[str, None] = OrderedDict.fromkeys(ordered)
        self._bare = set(bare)
        self._foreign = foreign

    @classmethod
    def load(cls, session: Session) -> "ReplayQueue":
        """The queue of a database. Sorted here, because databases sort text differently."""
        visited = last_visits(session)
        cached = set(session.scalars(select(PathRow.question_id).distinct()))
        own = session.scalars(select(PathRow.question_id).where(PathRow.slot == OWN).distinct())
        foreign = cached.difference(own, visited)
        bare = session.execute(select(VisitRow.question_id, VisitRow.step).where(VisitRow.start_bare))
        return cls(
            sorted(cached - foreign, key=lambda question_id: (visited.get(question_id, 0), question_id)),
            {question_id for question_id, step in bare if visited[question_id] == step},
            foreign,
        )

    def first(self, n: int, exclude: Set[str]) -> list[str]:
        """Up to ``n`` questions, the longest unvisited first."""
        ready = (name for name in self._waiting if name not in exclude and name not in self._bare)
        return list(itertools.islice(ready, n))

    def advance(self, decisions: Sequence[CacheDecision]) -> None:
        """Reorder after a committed step."""
        for decision in sorted(decisions, key=lambda decision: decision.visit.question_id):
            question_id = decision.visit.question_id
            (self._bare.add if decision.visit.start_bare else self._bare.discard)(question_id)
            if question_id in self._waiting or question_id in self._foreign or decision.paths:
                self._waiting[question_id] = None
                self._waiting.move_to_end(question_id)
