"""Which questions a step replays, what the initial cache cost, and evaluations."""

from openrlhf_rpo.types import CacheDecision, StepRecord


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
