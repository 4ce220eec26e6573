"""Fisher's exact test: worked by hand, and its laws."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.studies.fisher import fewer_by_chance


def test_none_of_three_against_three_of_three():
    assert fewer_by_chance(0, 3, 3, 3) == pytest.approx(1 / 20)  # of the 20 ways to deal 3 successes, one


def test_nothing_to_tell_apart_is_certain_to_be_luck():
    assert fewer_by_chance(0, 8, 0, 8) == 1
    assert fewer_by_chance(8, 8, 8, 8) == 1


@given(st.integers(0, 6), st.integers(0, 6))
def test_more_successes_are_less_surprising(right, others):
    chances = [fewer_by_chance(r, 6, others, 6) for r in range(right + 1)]
    assert chances[0] >= 0 and chances[-1] <= 1 + 1e-12
    assert all(fewer <= more + 1e-12 for fewer, more in itertools.pairwise(chances))


@pytest.mark.parametrize("counts", [(4, 3, 0, 3), (-1, 3, 0, 3), (0, 3, 4, 3)])
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(ValueError, match="no counts"):
        fewer_by_chance(*counts)
