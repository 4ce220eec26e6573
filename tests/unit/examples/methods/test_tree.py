"""Laws of cuts at several depths, of the baseline by depth, and of what a path's stretches were worth."""

import itertools
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.methods.tree import Tree, depth_baselines, segment_advantages, segment_starts
from openrlhf_rpo.algo.methods import Cut
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import Group, Path, Prefix, Question, Sample

GROUP = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0, 10, 50])), min_size=1, max_size=8)


def cuts(length=100, n=4, depths=2, seed=0):
    path = Path("q", tuple(range(length)), None, "stop", 1.0, 1.0)
    return Tree(tree_depths=depths).cuts(Cut((path,) * n, random.Random(seed)))


def test_worked_example_of_cuts():
    near, far = set(), set()
    for seed in range(2000):
        a, b, c, d = cuts(seed=seed)
        assert a == b and c == d
        near.add(a)
        far.add(c)
    assert near == set(range(1, 51)) and far == set(range(51, 101))


@given(st.integers(1, 50), st.integers(1, 6), st.integers(1, 4), st.integers(0, 100))
def test_samples_of_one_depth_follow_each_other_from_near_to_far(length, each, depths, seed):
    found = cuts(length, each * depths, depths, seed)
    assert list(found) == sorted(found)
    assert all(len(set(found[i : i + each])) == 1 for i in range(0, len(found), each))
    assert min(found) >= 1 and max(found) <= length


def test_one_depth_is_a_uniform_cut():
    found = [cuts(10, 2, 1, seed)[0] for seed in range(5000)]
    assert set(found) == set(range(1, 11))
    assert all(abs(found.count(m) - 500) < 110 for m in range(1, 11))  # 5 standard deviations


def test_the_samples_are_dealt_out_evenly_to_the_depths():
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=6),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm")),
        rpo=SimpleNamespace(init=SimpleNamespace(mode="progressive")),
    )
    Tree(tree_depths=3).check_run(args)
    with pytest.raises(UsageError, match="--rpo.tree.depths 4: --rollout.n_samples_per_prompt 6 is not a multiple"):
        Tree(tree_depths=4).check_run(args)
    args.algo.advantage.estimator = "gae"
    Tree().check_run(args)
    with pytest.raises(UsageError, match="gae by a critic: use another estimator"):
        Tree(tree_segments=True).check_run(args)


# ── The baseline ──


def test_worked_example_of_baselines():
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


# ── Segments ──


def test_worked_example_of_segments():
    assert segment_starts([50, 50, 10, 10]) == [10, 10, 10, 10]
    assert segment_advantages([1, 1, 0, 1], [50, 50, 10, 10]) == [0.5, 0.5, 0, 0]


@given(GROUP)
def test_segments_follow_each_other_and_add_up_to_what_the_way_was_worth(group):
    rewards, depths = map(list, zip(*group, strict=True))
    found = dict(zip(depths, zip(segment_starts(depths), segment_advantages(rewards, depths), strict=True), strict=True))
    shallow, deep = min(depths), max(depths)
    assert found[shallow] == (shallow, 0)
    total, at = 0.0, deep
    while at != shallow:
        total, at = total + found[at][1], found[at][0]
    value = {d: [r for r, depth in group if depth == d] for d in (shallow, deep)}
    assert total == pytest.approx(sum(value[deep]) / len(value[deep]) - sum(value[shallow]) / len(value[shallow]), abs=1e-9)


@given(GROUP)
def test_what_all_depths_share_is_worth_nothing(group):
    depths = [depth for _, depth in group]
    assert segment_advantages([0.5] * len(group), depths) == [0.0] * len(group)


def test_segments_are_trained_on_where_they_are_asked_for():
    samples = tuple(Sample(Prefix((1,) * d), (9,), (-1.0,), "stop") for d in (50, 50, 10, 10))
    group = Group(Question("q", "1+1=", "2"), samples)
    plain, judged = Tree(), Tree(tree_segments=True)
    assert plain.baselines(group, [1, 0, 1, 1]) == judged.baselines(group, [1, 0, 1, 1]) == [0, 1, 1, 1]
    assert (list(plain.loss_from([50, 10])), plain.prefix_advantages(group, [1, 1, 0, 1])) == ([50, 10], None)
    assert (judged.loss_from([50, 10]), judged.prefix_advantages(group, [1, 1, 0, 1])) == ([10, 10], [0.5, 0.5, 0, 0])
