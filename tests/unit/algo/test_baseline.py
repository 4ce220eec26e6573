"""Laws of the baselines by depth and by the history."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.baseline import WORTH, depth_baselines, history_baselines

GROUP = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0, 10, 50])), min_size=1, max_size=8)


def test_worked_example():
    assert depth_baselines([1, 0, 1, 1], [50, 50, 10, 10]) == [0, 1, 1, 1]


def test_alone_at_its_depth_a_sample_is_compared_with_all_others_and_alone_with_nothing():
    assert depth_baselines([1.0, 0.0, 1.0], [5, 6, 6]) == [0.5, 1.0, 0.0]
    assert depth_baselines([1.0], [5]) == [0.0]


@given(GROUP, st.data())
def test_a_samples_own_reward_does_not_change_its_baseline(group, data):
    rewards, depths = map(list, zip(*group, strict=True))
    i = data.draw(st.integers(0, len(group) - 1))
    before = depth_baselines(rewards, depths)[i]
    rewards[i] = 7.0
    assert depth_baselines(rewards, depths)[i] == before


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_with_one_depth_it_is_the_mean_of_the_group_up_to_a_factor(rewards):
    n, mean = len(rewards), sum(rewards) / len(rewards)
    left = [r - b for r, b in zip(rewards, depth_baselines(rewards, [3] * n), strict=True)]
    assert left == pytest.approx([n / (n - 1) * (r - mean) for r in rewards], abs=1e-9)


@given(GROUP, st.data())
def test_nor_does_it_with_a_history(group, data):
    rewards, depths = map(list, zip(*group, strict=True))
    expected = data.draw(st.lists(st.floats(0, 1), min_size=len(group), max_size=len(group)))
    i = data.draw(st.integers(0, len(group) - 1))
    before = history_baselines(rewards, depths, expected)[i]
    rewards[i] = 7.0
    assert history_baselines(rewards, depths, expected)[i] == before


def test_a_group_that_agrees_differs_from_what_was_expected():
    """Four right where 0.3 was expected: all are praised. As expected: nobody is."""
    assert history_baselines([1.0] * 4, [5] * 4, [0.3] * 4) == pytest.approx([(WORTH * 0.3 + 3) / (WORTH + 3)] * 4)
    assert history_baselines([1.0] * 4, [5] * 4, [1.0] * 4) == [1.0] * 4
    assert history_baselines([1.0], [5], [0.3]) == [0.3]


def test_nobody_gains_by_where_they_start():
    """Two samples at a depth that succeeds with 0.9, two at 0.1: every expected advantage is 0."""
    depths, chances = [50, 50, 10, 10], [0.9, 0.9, 0.1, 0.1]
    expected = [0.0] * 4
    for rewards in itertools.product([0.0, 1.0], repeat=4):
        weight = 1.0
        for r, chance in zip(rewards, chances, strict=True):
            weight *= chance if r else 1 - chance
        for i, b in enumerate(depth_baselines(rewards, depths)):
            expected[i] += weight * (rewards[i] - b)
    assert expected == pytest.approx([0.0] * 4)
