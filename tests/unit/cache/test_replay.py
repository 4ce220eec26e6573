"""Which questions a step replays, what the initial cache cost, and evaluations."""

import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit


def test_the_question_that_waited_longest_is_replayed_first(cache, commit) -> None:
    assert cache.least_recently_visited(5) == ["q", "r"]  # never visited: by name
    commit(cache, 1, {"q": None, "s": (7,)})
    assert cache.least_recently_visited(5) == ["r", "q", "s"]
    commit(cache, 2, {"r": None})
    assert cache.least_recently_visited(2) == ["q", "s"]
    assert cache.least_recently_visited(5, exclude={"q"}) == ["s", "r"]
    assert cache.least_recently_visited(0) == []


def test_a_question_without_a_path_or_to_start_bare_is_not_replayed(cache, visit) -> None:
    visits = [visit("q", 1, start_bare=True), visit("t", 1, outcome="no_rewarded_sample")]
    cache.commit_step(StepRecord(1, 0, 8, {}), [CacheDecision(None, visit) for visit in visits])
    assert cache.least_recently_visited(5) == ["r"]


def test_after_a_rollback_the_same_questions_are_found(cache, commit) -> None:
    commit(cache, 1, {"q": None})
    before = cache.least_recently_visited(5)
    commit(cache, 2, {"r": None, "u": (1, 2)})
    assert cache.rollback(1) == 1
    assert cache.least_recently_visited(5) == before


def test_tokens_of_the_initial_cache_add_up_over_batches(reopen, path) -> None:
    with reopen() as cache:
        assert cache.initial_tokens == 0
        cache.commit_initial([path("q")], 300)
        cache.commit_initial([], 41)
        assert cache.initial_tokens == 341


def test_evaluations_come_back_by_step_and_go_with_a_rollback(cache, commit) -> None:
    cache.record_evaluation(0, {"pass1": 0.25})
    commit(cache, 1, {"q": None})
    cache.record_evaluation(1, {"pass1": 0.5})
    cache.record_evaluation(1, {"pass1": 0.75})
    assert cache.evaluations() == [(0, {"pass1": 0.25}), (1, {"pass1": 0.75})]
    cache.rollback(0)
    assert cache.evaluations() == [(0, {"pass1": 0.25})]


@settings(max_examples=20, deadline=None)
@given(
    st.sets(st.sampled_from("abcde"), max_size=3),
    st.lists(st.dictionaries(st.sampled_from("abcde"), st.sampled_from(["path", "keep", "bare"]), max_size=4), max_size=8),
    st.sets(st.sampled_from("abcde"), max_size=2),
    st.data(),
)
def test_the_order_that_is_kept_step_by_step_is_the_order_of_the_rows(initial, history, exclude, data) -> None:
    """The writer keeps its queue up to date; a reader loads it from the rows."""
    with tempfile.TemporaryDirectory() as folder, PathCache.open(f"sqlite:///{folder}/c.db", {}) as cache:
        reader = PathCache.open_to_read(f"sqlite:///{folder}/c.db")
        cache.commit_initial([Path(name, (1,), None, "stop", 1.0, 1.0) for name in sorted(initial)])
        cache.mark_initialised()
        for step, changes in enumerate(history, 1):
            decisions = [
                CacheDecision(
                    Path(name, (step,), None, "stop", 1.0, 1.0, step=step) if what == "path" else None,
                    Visit(name, step, 0, 0, 1, 1, 1, "best", start_bare=what == "bare"),
                )
                for name, what in changes.items()
            ]
            cache.commit_step(StepRecord(step, 0, step, {}), decisions)
            n = data.draw(st.integers(0, 5))
            assert cache.least_recently_visited(n, exclude) == reader.least_recently_visited(n, exclude)
        cache.rollback(data.draw(st.integers(0, len(history))))
        assert cache.least_recently_visited(5) == reader.least_recently_visited(5)
        reader.close()
