"""Laws of the value estimate by cut."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.history import expected_score, mistake, share_to_write
from openrlhf_rpo.types import OWN, WRONG, Visit


def visit(cut, prefix, rewarded, n=4, slot=OWN):
    return Visit("q", 1, cut, prefix, 100, n, rewarded, "best", slot=slot)


def test_what_one_visit_says_of_other_cuts():
    """Half written anew, 1 of 4 right: q = 1.5 / 5, and half is expected to go that way again."""
    seen = [visit(50, 50, 1)]
    assert expected_score(seen, 0.5) == pytest.approx(0.3)
    assert expected_score(seen, 0.25) == pytest.approx(0.3**0.5) and expected_score(seen, 1.0) == pytest.approx(0.09)


def test_without_visits_a_whole_path_is_right_half_the_time_and_a_kept_path_always():
    assert expected_score([], 1.0) == 0.5 and expected_score([], 0.0) == 1.0
    assert expected_score([visit(0, 80, 4)], 1.0) == 0.5  # nothing was written


def test_the_newest_visit_counts_twice_the_one_before():
    old, new = visit(0, 0, 0), visit(0, 0, 4)
    risks = [-math.log(0.5 / 5), -math.log(4.5 / 5)]
    assert expected_score([old, new], 1.0) == pytest.approx(math.exp(-(0.5 * risks[0] + risks[1]) / 1.5))


VISITS = st.lists(st.builds(visit, st.integers(0, 90), st.integers(0, 90), st.integers(0, 4)), max_size=5)


@given(VISITS, st.floats(0, 1), st.floats(0, 1))
def test_a_chance_is_one_and_falls_with_what_must_be_written(visits, a, b):
    low, high = sorted([a, b])
    assert 0 < expected_score(visits, high) <= expected_score(visits, low) <= 1


def test_the_bare_question_is_written_whole():
    assert share_to_write(0, 0) == 1.0 and share_to_write(30, 90) == 0.25 and share_to_write(40, 0) == 1.0


def test_what_half_of_a_wrong_path_costs():
    """1/2 from the bare question (2 of 4), 1 of 4 from half of a wrong path: the logarithm of 0.5 / 0.3, for a half."""
    seen = [visit(0, 0, 2), visit(50, 50, 1, slot=WRONG)]
    assert mistake(seen) == pytest.approx(2 * math.log(0.5 / 0.3))
    assert expected_score(seen, 0.5, WRONG) == pytest.approx(0.3) and expected_score(seen, 1.0, WRONG) == pytest.approx(0.5)
    assert expected_score(seen, 0.5) == pytest.approx(0.5**0.5)  # a right path's chance does not know of it


def test_an_unknown_wrong_path_halves_the_chance_by_its_middle_and_none_raises_it():
    assert mistake([]) == pytest.approx(2 * math.log(2)) and expected_score([], 0.5, WRONG) == pytest.approx(0.25)
    assert mistake([visit(0, 0, 0), visit(10, 90, 4, slot=WRONG)]) == 0.0


@given(VISITS, VISITS, st.floats(0, 1))
def test_a_wrong_path_promises_no_more_than_the_bare_question(visits, others, share):
    wrong = [visit(v.cut, v.prefix_length, v.n_rewarded, slot=WRONG) for v in others]
    assert 0 < expected_score(visits + wrong, share, WRONG) <= expected_score(visits + wrong, 1.0) + 1e-12
    assert expected_score(visits + wrong, share) == expected_score(visits, share)
