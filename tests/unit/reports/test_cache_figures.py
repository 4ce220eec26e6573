"""Figures over steps from outlines alone; numbers worked out by hand."""

import math

import pytest

from openrlhf_rpo.cache.history import PathOutline
from openrlhf_rpo.reports.cache_figures import at_step, difference, figures_by_step
from openrlhf_rpo.types import StepRecord

ROWS = [
    PathOutline("a", 0, 10, 1.0, 1.0),
    PathOutline("b", 0, 20, 0.0, 0.5),
    PathOutline("a", 2, 16, 1.0, 0.5),
    PathOutline("c", 2, 30, 1.0, 1.0),
]
RECORDS = [StepRecord(1, 0, 2, {"rpo/cache/replaced": 0.0}), StepRecord(2, 0, 4, {"rpo/cache/replaced": 0.5})]


def test_means_are_over_the_paths_as_they_were_at_each_step():
    first, kept, replaced = figures_by_step(ROWS, RECORDS)
    assert (first.step, first.paths, first.score, first.reward, first.length, first.age) == (0, 2, 0.5, 0.75, 15.0, 0.0)
    assert math.isnan(first.replaced)
    assert (kept.step, kept.paths, kept.length, kept.age, kept.replaced) == (1, 2, 15.0, 1.0, 0.0)
    assert (replaced.paths, replaced.length, replaced.replaced) == (3, 22.0, 0.5)
    assert (replaced.age, replaced.score, replaced.reward) == pytest.approx((2 / 3, 2 / 3, 2 / 3))


def test_of_a_pruned_cache_only_readable_steps_have_figures():
    rows = [ROWS[1], *ROWS[2:]]
    assert [(f.step, f.paths) for f in figures_by_step(rows, RECORDS, kept_from=2)] == [(2, 3)]


def test_no_path_has_no_mean():
    [figures] = figures_by_step([], [])
    assert figures.paths == 0 and math.isnan(figures.length) and math.isnan(figures.age)


def test_the_difference_of_two_steps():
    changes = difference(at_step(ROWS, 1), at_step(ROWS, 2))
    assert changes == {"replaced": ["a"], "added": ["c"], "removed": [], "same": 1}
    assert difference(at_step(ROWS, 2), at_step(ROWS, 0))["removed"] == ["c"]
    assert difference(at_step(ROWS, 0), at_step(ROWS, 1)) == {"replaced": [], "added": [], "removed": [], "same": 2}
