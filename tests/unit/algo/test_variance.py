"""Laws of a group's signal and outcome."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.variance import has_signal, outcome, rewarded

VALUES = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("values", "signal"),
    [
        ([0.0, 1.0], True),
        ([1.0, 1.0], False),
        ([1.0], False),
        ([], False),
        ([0.1 + 0.2, 0.3], False),
        ([0.5, 0.50001], True),
    ],
)
def test_signal_by_hand(values, signal):
    assert has_signal(values) is signal


@given(VALUES)
def test_the_order_of_a_group_does_not_matter(values):
    assert has_signal(values) == has_signal(values[::-1])
    assert outcome(values) == outcome(values[::-1])


@given(st.floats(-10, 10), st.integers(1, 8))
def test_equal_values_have_no_signal(value, n):
    assert not has_signal([value] * n)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([1.0, 0.1], "all_right"), ([0.0, -1.0], "all_wrong"), ([0.0, 1.0], "mixed"), ([0.5], "all_right")],
)
def test_outcome_by_hand(scores, expected):
    assert outcome(scores) == expected


def test_rewarded_means_above_0():
    assert [rewarded(score) for score in (-1.0, 0.0, 1e-6, 1.0)] == [False, False, True, True]


def test_a_group_without_samples_has_no_outcome():
    with pytest.raises(ValueError, match="without samples"):
        outcome([])
