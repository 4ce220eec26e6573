"""Laws of length-aware reward shaping."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.shaping import ShapingOptions, shape_rewards

GROUP = st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 10**6)), min_size=1, max_size=12)


def options(**changes):
    return ShapingOptions(**{"alpha": 0.01, **changes})


def columns(group):
    return [score for score, _ in group], [length for _, length in group]


def test_worked_example():
    shaped = shape_rewards([1.0, 1.0], [100, 300], options(min=0.0))
    assert shaped == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    assert shape_rewards([1.0, 1.0], [100, 300], options()) == pytest.approx([0.7310585786, 0.5])


@given(GROUP)
def test_alpha_0_returns_the_scores(group):
    scores, lengths = columns(group)
    assert shape_rewards(scores, lengths, options(alpha=0.0, scope="all")) == scores


def test_a_wrong_answer_keeps_its_score_by_default():
    assert shape_rewards([0.0, -0.5, 1.0], [100, 100, 100], options()) == [0.0, -0.5, 0.5]


def test_the_literal_equation_lifts_a_wrong_answer_to_the_lower_bound():
    assert shape_rewards([0.0, 1.0], [100, 300], options(scope="all")) == [0.5, 0.5]


def test_the_reference_is_the_mean_of_the_group_wrong_answers_included():
    shaped = shape_rewards([1.0, 1.0, 0.0], [100, 200, 600], options(min=0.0))  # mean 300
    assert shaped == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1)), 0.0])


def test_without_a_rewarded_sample_there_is_nothing_to_shape():
    assert shape_rewards([0.0, -1.0], [100, 300], options()) == [0.0, -1.0]


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), st.integers(1, 9999))
def test_equal_lengths_halve_every_score(scores, length):
    shaped = shape_rewards(scores, [length] * len(scores), options(min=0.0))
    assert shaped == [score / 2 for score in scores]


@given(GROUP, st.floats(1e-6, 1e6), st.sampled_from(["rewarded", "all"]))
def test_nothing_overflows_and_everything_shaped_is_within_the_bounds(group, alpha, scope):
    scores, lengths = columns(group)
    shaped = shape_rewards(scores, lengths, options(alpha=alpha, scope=scope))
    assert len(shaped) == len(scores)
    for score, reward in zip(scores, shaped, strict=True):
        assert 0.5 <= reward <= 1.0 if scope == "all" or score > 0 else reward == score


@given(GROUP, st.floats(1e-4, 10.0))
def test_of_two_right_answers_the_longer_never_earns_more(group, alpha):
    lengths = [length for _, length in group]
    shaped = shape_rewards([1.0] * len(lengths), lengths, options(alpha=alpha))
    by_length = [reward for _, reward in sorted(zip(lengths, shaped, strict=True), key=lambda pair: pair[0])]
    assert by_length == sorted(by_length, reverse=True)


def test_an_empty_group_is_shaped_to_nothing():
    assert shape_rewards([], [], options()) == []


def test_a_score_without_a_length_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        shape_rewards([1.0, 1.0], [100], options())


def test_a_wrong_answer_whose_summed_reward_is_above_zero_keeps_it():
    """Accuracy and a fifth for the format: right, wrong in the right format, wrong."""
    shaped = shape_rewards([1.2, 0.2, 0.0], [100, 100, 100], options(), scores=[1.0, 0.0, 0.0])
    assert shaped == pytest.approx([0.6, 0.2, 0.0])
