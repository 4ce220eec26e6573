"""Figures of a whole cache step by step, from the outlines of its paths: one pass over the rows, nothing decoded."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from openrlhf_rpo.cache.history import PathOutline
from openrlhf_rpo.types import StepRecord


@dataclass(frozen=True)
class StepFigures:
    """The cache at ``step``: means over all cached paths (NaN without any), lengths in tokens, ages in steps.

    ``replaced`` is the share of the step's questions whose path changed; NaN at step 0.
    """

    step: int
    paths: int
    score: float
    reward: float
    length: float
    age: float
    replaced: float


def figures_by_step(outlines: Iterable[PathOutline], records: Iterable[StepRecord], kept_from: int = 0) -> list[StepFigures]:
    """The figures of each step since ``kept_from``. ``outlines`` are ordered by step."""
    replaced = {record.step: record.metrics.get("rpo/cache/replaced", math.nan) for record in records}
    rows = iter(outlines)
    row = next(rows, None)
    cached: dict[str, np.ndarray] = {}
    sums = np.zeros(5)  # paths, scores, rewards, lengths, steps
    figures = []
    for step in sorted({kept_from, *(s for s in replaced if s > kept_from)}):
        while row is not None and row.step <= step:
            addends = np.array([1, row.score, row.reward, row.length, row.step])
            sums += addends - cached.get(row.question_id, 0)
            cached[row.question_id] = addends
            row = next(rows, None)
        n = int(sums[0])
        score, reward, length, written = (sums[1:] / n).tolist() if n else [math.nan] * 4
        figures.append(StepFigures(step, n, score, reward, length, step - written, replaced.get(step, math.nan)))
    return figures


def at_step(outlines: Iterable[PathOutline], step: int) -> dict[str, PathOutline]:
    """The cached path of each question at ``step``. ``outlines`` are ordered by step."""
    return {row.question_id: row for row in takewhile(lambda row: row.step <= step, outlines)}


def difference(before: dict[str, PathOutline], after: dict[str, PathOutline]) -> dict[str, Any]:
    """The ``replaced``, ``added`` and ``removed`` question ids between two states, and the number of unchanged ones."""
    common = before.keys() & after.keys()
    replaced = sorted(q for q in common if before[q].step != after[q].step)
    return {
        "replaced": replaced,
        "added": sorted(after.keys() - before.keys()),
        "removed": sorted(before.keys() - after.keys()),
        "same": len(common) - len(replaced),
    }
