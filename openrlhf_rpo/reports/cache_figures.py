"""Figures of a whole cache over its steps, from outlines of its paths: nothing is decoded, one pass over the rows."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from openrlhf_rpo.cache.history import PathOutline
from openrlhf_rpo.types import StepRecord


@dataclass(frozen=True)
class StepFigures:
    """The cache as it was at ``step``: means over all cached paths, lengths in tokens, ages in steps since written.

    ``replaced`` is the share of the step's questions whose path changed; NaN at step 0. Means are NaN of no path.
    """

    step: int
    paths: int
    score: float
    reward: float
    length: float
    age: float
    replaced: float


def figures_by_step(outlines: Iterable[PathOutline], records: Iterable[StepRecord], kept_from: int = 0) -> list[StepFigures]:
    """One entry a step from ``kept_from`` on. ``outlines`` are ordered by step, as ``PathCache.outlines`` gives them."""
    replaced = {record.step: record.metrics.get("rpo/cache/replaced", math.nan) for record in records}
    rows = iter(outlines)
    row = next(rows, None)
    cached: dict[str, PathOutline] = {}
    totals = _Totals()
    figures = []
    for step in sorted({kept_from, *(s for s in replaced if s > kept_from)}):
        while row is not None and row.step <= step:
            before = cached.get(row.question_id)
            if before is not None:
                totals.add(before, -1)
            totals.add(row, 1)
            cached[row.question_id] = row
            row = next(rows, None)
        figures.append(totals.at(step, replaced.get(step, math.nan)))
    return figures


@dataclass
class _Totals:
    paths: int = 0
    score: float = 0.0
    reward: float = 0.0
    length: int = 0
    step: int = 0

    def add(self, row: PathOutline, sign: int) -> None:
        self.paths += sign
        self.score += sign * row.score
        self.reward += sign * row.reward
        self.length += sign * row.length
        self.step += sign * row.step

    def at(self, step: int, replaced: float) -> StepFigures:
        n = self.paths
        if not n:
            return StepFigures(step, 0, math.nan, math.nan, math.nan, math.nan, replaced)
        age = step - self.step / n
        return StepFigures(step, n, self.score / n, self.reward / n, self.length / n, age, replaced)


def at_step(outlines: Iterable[PathOutline], step: int) -> dict[str, PathOutline]:
    """The cached path of each question at ``step``."""
    cached: dict[str, PathOutline] = {}
    for row in outlines:
        if row.step > step:
            break
        cached[row.question_id] = row
    return cached


def difference(before: dict[str, PathOutline], after: dict[str, PathOutline]) -> dict[str, Any]:
    """What changed between two states: ``replaced``, ``added``, ``removed`` question ids, and how many are the same."""
    common = before.keys() & after.keys()
    replaced = sorted(q for q in common if before[q].step != after[q].step)
    return {
        "replaced": replaced,
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "same": len(common) - len(replaced),
    }
