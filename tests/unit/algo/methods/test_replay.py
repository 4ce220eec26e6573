"""Laws of what methods that replay have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.methods import RPO, Stored, Verify
from openrlhf_rpo.algo.methods.replay import n_replayed
from openrlhf_rpo.types import OWN, Path, Visit

OWN_PATH = Path("q", (1, 2, 3), None, "stop", 1.0, 1.0)


def history(*groups):
    """Visits of (cut, prefix length, rewarded) with 4 samples each, oldest first."""
    return tuple(Visit("q", i + 1, cut, kept, 10, 4, right, "best") for i, (cut, kept, right) in enumerate(groups))


@pytest.mark.parametrize("method", [RPO, Verify])
def test_a_question_is_replayed_at_most_so_many_times_in_a_row(method):
    twice = history((0, 0, 2), (3, 7, 2), (10, 0, 2))  # the last one was cut whole, which is a replay, too
    paths = dict.fromkeys(range(4), OWN_PATH)
    assert len(method(replay_max_reuses=3).paths(Stored(paths, twice), 4)) == 4
    assert len(method(replay_max_reuses=2).paths(Stored(paths, twice), 4)) == 0
    again = (*twice, *history((0, 0, 2)))
    assert len(method(replay_max_reuses=2).paths(Stored(paths, again), 4)) == 4


def test_max_reuses_0_is_without_end_and_reads_the_newest_visit_alone():
    often = history((0, 0, 2), *[(3, 7, 2)] * 50)
    assert RPO(replay_max_reuses=0).paths(Stored({OWN: OWN_PATH}, often), 4) == (OWN_PATH,) * 4
    assert not RPO(replay_max_reuses=0).reads_history and RPO(replay_max_reuses=1).reads_history


def test_without_a_path_of_its_own_a_question_starts_bare():
    assert RPO().paths(Stored({1: OWN_PATH}), 4) == ()


@pytest.mark.parametrize(("n_samples", "slots"), [(2, [0, 1]), (3, [0, 1, 2]), (4, [])])
def test_verified_reuse_gives_each_sample_a_path_of_its_own(n_samples, slots):
    paths = {slot: Path("q", (slot,) * 5, None, "stop", 0.0, 0.0, slot=slot) for slot in range(3)}
    assert [path.slot for path in Verify().paths(Stored(paths), n_samples)] == slots


@given(st.integers(0, 600), st.integers(0, 99), st.integers(1, 50))
def test_over_many_steps_exactly_the_share_replays(n, percent, steps):
    counts = [n_replayed(n, percent / 100, step) for step in range(1, steps + 1)]
    assert sum(counts) == percent * n * steps // 100
    assert all(0 <= count <= n for count in counts) and max(counts) - min(counts) <= 1


def test_worked_example():
    assert [n_replayed(8, 0.85, step) for step in range(1, 6)] == [6, 7, 7, 7, 7]
    assert n_replayed(100, 0.29, 1) == 29 and n_replayed(16, 0.75, 7) == 12 and n_replayed(16, 0.0, 1) == 0
