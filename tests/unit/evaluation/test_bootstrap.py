"""Intervals by question: their laws, and a coverage that is what it says."""

import numpy as np
import pytest

from openrlhf_rpo.evaluation.bootstrap import interval, paired_difference


def test_equal_values_leave_nothing_open():
    found = interval([0.5] * 7)
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)


def test_the_same_seed_gives_the_same_interval():
    values = [0.01 * i**2 for i in range(30)]
    assert interval(values, seed=3) == interval(values, seed=3)
    assert interval(values, seed=3) != interval(values, seed=4)


def test_it_narrows_with_the_root_of_the_number_of_questions():
    widths = [(i := interval([0.0, 1.0] * n)).high - i.low for n in (10, 40)]
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.15)


def test_about_95_of_100_intervals_hold_the_truth():
    generator = np.random.default_rng(0)
    held = [
        (i := interval(generator.binomial(8, 0.4, size=60) / 8, resamples=400, seed=n)).low <= 0.4 <= i.high
        for n in range(300)
    ]
    assert 0.90 <= np.mean(held) <= 0.98


def test_what_makes_a_question_hard_cancels_in_a_pair():
    """A constant gain over questions of any difficulty is certain, although each mean alone is not."""
    easy_and_hard = [0.0, 0.9, 0.1, 0.8, 0.05, 0.5]
    better = [value + 0.1 for value in easy_and_hard]
    found = paired_difference(better, easy_and_hard)
    assert found.mean == pytest.approx(0.1) and found.high - found.low == pytest.approx(0, abs=1e-9) and found.excludes_zero
    assert interval(better).low < interval(easy_and_hard).high


def test_a_model_does_not_differ_from_itself():
    found = paired_difference([0.25, 1.0, 0.5], [0.25, 1.0, 0.5])
    assert (found.mean, found.low, found.high, found.excludes_zero) == (0, 0, 0, False)


def test_blocks_of_resamples_change_nothing_but_memory(monkeypatch):
    values = [0.0, 1.0, 0.5]
    whole = interval(values, resamples=500)
    monkeypatch.setattr("openrlhf_rpo.evaluation.bootstrap._BLOCK", 3 * 500)
    assert interval(values, resamples=500) == whole


def test_no_questions_and_unequal_numbers_are_refused():
    with pytest.raises(ValueError, match="no questions"):
        interval([])
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1, 2], [1])
