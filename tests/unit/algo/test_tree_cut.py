"""Laws of cuts at several depths."""

import random

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cut import CutContext
from openrlhf_rpo.algo.cut.tree import tree
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path


def cuts(length=100, n=4, depths=2, seed=0, **options):
    path = Path("q", tuple(range(length)), None, "stop", 1.0, 1.0)
    return tree(CutContext((path,), n, CutOptions(max="ratio:1", depths=depths, **options), random.Random(seed)))


def test_worked_example():
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
