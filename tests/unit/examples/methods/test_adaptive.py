"""Laws of the cut that follows a question's success."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.methods.adaptive import Adaptive, wanted_share
from openrlhf_rpo.algo.methods import RPO, Cut
from openrlhf_rpo.types import Path, Visit


def visit(rewarded: int, n: int = 4, cut: int = 0, prefix: int = 0) -> Visit:
    return Visit("q", 1, cut, prefix, 100, n, rewarded, "best")


def cuts(last: Visit | None, length: int = 100, n: int = 4, seed: int = 0, method=Adaptive, **options) -> tuple[int, ...]:
    path = Path("q", tuple(range(length)), None, "stop", 1.0, 1.0)
    visits = () if last is None else (last,)
    return method(**{"cut_max": "ratio:1", **options}).cuts(Cut((path,) * n, random.Random(seed), visits))


def test_worked_example():
    assert wanted_share(visit(1, cut=40, prefix=60), 0.5) == pytest.approx(0.4 * 0.6931 / 1.2040, rel=1e-3)
    drawn = cuts(visit(1, cut=40, prefix=60), n=20_000, cut_scope="sample")
    assert (min(drawn), max(drawn)) == (1, 46)
    assert sum(drawn) / len(drawn) == pytest.approx(23.5, abs=0.5)  # 5 standard deviations


@given(st.integers(1, 100), st.integers(0, 100), st.integers(2, 16), st.floats(0.05, 0.95))
def test_more_success_never_reveals_more(cut, prefix, n, target):
    shares = [wanted_share(visit(k, n, cut, prefix), target) for k in range(n + 1)]
    assert shares == sorted(shares)
    assert shares[0] > 0


def test_a_group_that_met_the_target_is_cut_at_the_same_place_again():
    assert wanted_share(visit(2, cut=30, prefix=70), 0.5) == pytest.approx(0.3)


def test_a_bare_group_wrote_the_whole_path():
    assert wanted_share(visit(2), 0.5) == pytest.approx(1.0)


def test_before_the_first_visit_the_cut_is_rpos():
    assert [cuts(None, seed=s) for s in range(20)] == [cuts(None, seed=s, method=RPO) for s in range(20)]


@given(
    st.integers(1, 60),
    st.integers(0, 4),
    st.integers(1, 90),
    st.integers(0, 90),
    st.sampled_from(["group", "sample"]),
    st.integers(0, 80),
)
def test_a_cut_is_within_reach_and_leaves_something_to_generate(length, rewarded, cut, prefix, scope, largest):
    drawn = cuts(visit(rewarded, 4, cut, prefix), length, n=5, cut_scope=scope, cut_max=f"fixed:{largest}")
    assert len(drawn) == 5
    assert all(1 <= m <= max(1, min(largest, length)) for m in drawn)
    assert scope == "sample" or len(set(drawn)) == 1


def test_equal_keys_give_equal_cuts():
    assert cuts(visit(3), seed=5) == cuts(visit(3), seed=5)
