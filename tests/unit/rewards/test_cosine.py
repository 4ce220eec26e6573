import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.rewards.cosine import cosine_reward

lengths = st.integers(0, 5000)


@pytest.mark.parametrize(
    ("correct", "length", "reward"),
    [(True, 0, 1.0), (True, 500, 0.75), (True, 1000, 0.5), (False, 0, -1.0), (False, 500, -0.75), (False, 1000, -0.5)],
)
def test_start_middle_and_end(correct, length, reward):
    assert cosine_reward(correct, length) == pytest.approx(reward)


def test_a_quarter_of_the_way_is_not_a_quarter_of_the_fall():
    # cos(pi / 4) = 0.70711: 0.5 + 0.5 * 1.70711 / 2
    assert cosine_reward(True, 250) == pytest.approx(0.926777, abs=1e-6)


@given(lengths, lengths)
def test_longer_is_never_better_when_right_and_never_worse_when_wrong(a, b):
    short, long = sorted((a, b))
    assert cosine_reward(True, short) >= cosine_reward(True, long)
    assert cosine_reward(False, short) <= cosine_reward(False, long)


def test_beyond_max_len_the_reward_stays_at_its_end():
    assert cosine_reward(True, 200, max_len=100) == cosine_reward(True, 100, max_len=100) == 0.5
    assert cosine_reward(False, 200, max_len=100) == -0.5


def test_the_values_are_options():
    values = dict(min_value_wrong=-10.0, max_value_wrong=0.0, min_value_correct=2.0, max_value_correct=4.0, max_len=10)
    assert [cosine_reward(c, 5, **values) for c in (True, False)] == pytest.approx([3.0, -5.0])
