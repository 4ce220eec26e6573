"""Laws of the choice for the initial cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.init import best_of
from openrlhf_rpo.types import Prefix, Sample


def sample(score, length, first=0):
    return Sample(Prefix(), (first, *[1] * (length - 1)), (-1.0,) * length, "stop", score)


def test_the_best_score_then_the_shortest_then_the_first():
    first, twin = sample(1.0, 4, first=8), sample(1.0, 4, first=9)
    assert best_of([sample(0.5, 1), sample(1.0, 6), first, twin], "rewarded") is first


def test_without_a_rewarded_sample_nothing_is_cached_unless_any_may_enter():
    wrong = [sample(0.0, 5), sample(0.0, 3)]
    assert best_of(wrong, "rewarded") is None
    assert best_of(wrong, "any") is wrong[1]


def test_no_samples_give_no_path():
    assert best_of([], "any") is None


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.integers(1, 9)), min_size=1, max_size=8))
def test_what_is_cached_is_no_worse_than_any_other(rows):
    samples = [sample(*row) for row in rows]
    best = best_of(samples, "any")
    assert all((-best.score, best.path_length) <= (-s.score, s.path_length) for s in samples)
    assert best_of(samples, "rewarded") in (best, None)


def test_a_sample_without_score_is_refused():
    with pytest.raises(ValueError, match="no score"):
        best_of([sample(None, 1)], "rewarded")
