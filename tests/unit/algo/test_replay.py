"""How many questions of a batch replay the cache."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.replay import n_replayed

SHARES = st.integers(1, 99).map(lambda percent: percent / 100)


def test_worked_example():
    assert [n_replayed(16, 0.75, "batch", step) for step in range(1, 7)] == [12] * 6
    assert [n_replayed(16, 0.75, "step", step) for step in range(1, 7)] == [0, 16, 16, 16, 0, 16]


@given(SHARES, st.integers(1, 2000), st.integers(1, 64))
def test_by_step_the_share_of_bare_steps_is_exact_at_every_moment(share, steps, n):
    replayed = [n_replayed(n, share, "step", step) for step in range(1, steps + 1)]
    assert set(replayed) <= {0, n}
    assert replayed.count(0) == math.ceil(round(steps * (1 - share), 9))


@given(SHARES)
def test_the_first_step_starts_from_the_bare_question(share):
    assert n_replayed(16, share, "step", 1) == 0


@pytest.mark.parametrize("by", ["batch", "step"])
@given(step=st.integers(1, 100))
def test_without_a_share_nothing_is_taken_from_the_cache_out_of_turn(by, step):
    assert n_replayed(16, 0.0, by, step) == 0
