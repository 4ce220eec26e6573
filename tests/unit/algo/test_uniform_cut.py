"""Laws of the uniform cut."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cut import CUT_RULES, CutContext
from openrlhf_rpo.algo.cut.uniform import largest_cut, uniform
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path, Visit

RULES = st.one_of(
    st.integers(0, 60).map("fixed:{}".format),
    st.integers(1, 100).map(lambda percent: f"ratio:{percent / 100}"),
)


def context(length=10, finish="stop", shortest=None, n=4, seed=0, **options):
    visits = () if shortest is None else (Visit("q", 1, 0, 0, shortest, n, 1, "best"),)
    path = Path("q", tuple(range(length)), None, finish, 1.0, 1.0)
    return CutContext((path,), n, CutOptions(**options), random.Random(seed), visits)


@pytest.mark.parametrize(
    ("rule", "path_length", "shortest", "largest"),
    [
        ("ratio:0.5", 10, 8, 4),
        ("ratio:0.5", 10, 7, 3),  # 3.5 is rounded down
        ("ratio:0.29", 100, 100, 29),  # 0.29 * 100 is 28.999999999999996
        ("ratio:1", 10, 30, 10),  # never more than the path
        ("fixed:300", 1000, 8, 300),
        ("fixed:300", 120, 8, 120),
        ("fixed:0", 10, 8, 0),
    ],
)
def test_largest_cut_by_hand(rule, path_length, shortest, largest):
    assert largest_cut(path_length, shortest, CutOptions(max=rule)) == largest


@given(st.integers(1, 50), st.integers(1, 50), RULES)
def test_largest_cut_never_exceeds_the_path(path_length, shortest, rule):
    assert 0 <= largest_cut(path_length, shortest, CutOptions(max=rule)) <= path_length


def test_half_of_the_shortest_path_of_the_last_group_is_the_default():
    cuts = {uniform(context(shortest=8, finish="length", seed=seed))[0] for seed in range(200)}
    assert cuts == {0, 1, 2, 3, 4}


def test_before_the_first_group_the_cached_path_is_the_shortest():
    cuts = {uniform(context(length=10, finish="length", seed=seed))[0] for seed in range(200)}
    assert cuts == {0, 1, 2, 3, 4, 5}


def test_every_cut_from_0_to_the_largest_is_equally_likely():
    drawn = context(n=50_000, scope="sample", max="fixed:4", finish="length")
    counts = Counter(uniform(drawn))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(abs(count - 10_000) < 500 for count in counts.values())  # 5.6 standard deviations


def test_the_largest_cut_can_be_the_whole_path():
    assert 10 in uniform(context(n=200, scope="sample", max="fixed:99"))


@given(st.integers(1, 40), st.integers(1, 60), RULES, st.sampled_from(["group", "sample"]), st.integers(0, 9))
def test_an_end_token_is_always_lost(length, shortest, rule, scope, seed):
    cuts = uniform(context(length=length, shortest=shortest, max=rule, scope=scope, seed=seed))
    assert all(1 <= cut <= max(1, largest_cut(length, shortest, CutOptions(max=rule))) for cut in cuts)


def test_a_path_that_hit_its_limit_may_be_kept_whole():
    assert uniform(context(max="fixed:0", finish="length")) == (0, 0, 0, 0)
    assert uniform(context(max="fixed:0", finish="stop")) == (1, 1, 1, 1)


@given(st.integers(0, 99))
def test_a_group_shares_one_cut(seed):
    cuts = uniform(context(scope="group", seed=seed, n=8))
    assert len(cuts) == 8 and len(set(cuts)) == 1


def test_samples_can_have_cuts_of_their_own():
    assert len(set(uniform(context(scope="sample", n=64)))) > 1


def test_every_rule_that_an_option_names_is_registered():
    assert CutOptions().rule in CUT_RULES
