"""Laws of what a stored path's stretches were worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.segments import segment_advantages, segment_starts

GROUP = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 10, 50, 80])), min_size=1, max_size=8)


def test_worked_example():
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
