"""The cache at step t is, for each question, the row with the largest step <= t (docs/cache.md)."""

import math
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit


def ids_at(cache, step=None):
    return {question: tuple(path.token_ids) for question, path in cache.paths(["q", "r", "s"], step).items()}


def test_the_cache_at_a_step_is_the_row_with_the_largest_step_up_to_it(cache, commit) -> None:
    commit(cache, 1, {"q": (1, 9)})
    commit(cache, 2, {"r": (4, 8)})
    commit(cache, 3, {"q": None, "s": (6,)})
    assert ids_at(cache, 0) == {"q": (1, 2, 3), "r": (4, 5)}
    assert ids_at(cache, 1) == {"q": (1, 9), "r": (4, 5)}
    assert ids_at(cache, 2) == {"q": (1, 9), "r": (4, 8)}
    assert ids_at(cache, 3) == ids_at(cache) == ids_at(cache, 99) == {"q": (1, 9), "r": (4, 8), "s": (6,)}
    assert ids_at(cache, -1) == {}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(0, 99), max_size=4), max_size=6),
    st.data(),
)
def test_any_history_reads_and_rolls_back_like_a_list_of_dicts(history, data) -> None:
    states: list[dict[str, tuple[int, ...]]] = [{}]
    with tempfile.TemporaryDirectory() as folder, PathCache.open(f"sqlite:///{folder}/c.db", {}) as cache:
        cache.mark_initialised()
        for step, changes in enumerate(history, 1):
            changed = {question: (token,) for question, token in changes.items() if token is not None}
            states.append(states[-1] | changed)
            decisions = [
                CacheDecision(
                    Path(question, (token,), None, "stop", 1.0, 1.0, step=step) if token is not None else None,
                    Visit(question, step, 0, 0, 1, 1, 1, "best"),
                )
                for question, token in changes.items()
            ]
            cache.commit_step(StepRecord(step, 0, step, {}), decisions)
        kept = data.draw(st.integers(0, len(history)))
        assert cache.rollback(kept) == len(history) - kept
        for step, state in enumerate(states[: kept + 1]):
            assert {q: tuple(path.token_ids) for q, path in cache.paths("abcd", step).items()} == state
        assert cache.latest_step == kept
        assert {q: tuple(path.token_ids) for q, path in cache.paths("abcd").items()} == states[kept]


def test_the_newest_visit_up_to_a_step_is_read_whole(cache, visit) -> None:
    first = visit("q", 1, cut=7, shortest_path=11, n_rewarded=0, outcome="reset", start_bare=True)
    second = visit("q", 2, cut=0, prefix_length=3)
    cache.commit_step(StepRecord(1, 0, 8, {}), [CacheDecision(None, first)])
    cache.commit_step(StepRecord(2, 0, 16, {}), [CacheDecision(None, second)])
    assert cache.visits(["q", "r"], step=0) == {}
    assert cache.visits(["q", "r"], step=1) == {"q": first}
    assert cache.visits(["q", "r"]) == {"q": second}


def test_a_path_comes_back_as_it_was_stored(cache, path) -> None:
    parent = cache.paths(["q"])["q"]
    new = path(
        "q", (1, 70_000, 5), log_probs=(-0.5, -math.inf, -2.0), finish_reason="length", score=0.5, reward=0.625,
        prefix_length=1, step=1, parent_id=parent.path_id,
    )  # fmt: skip
    cache.commit_step(StepRecord(1, 0, 8, {}), [CacheDecision(new, Visit("q", 1, 2, 1, 3, 8, 8, "best"))])
    back = cache.paths(["q"])["q"]
    assert back.path_id is not None and back.path_id != parent.path_id
    assert back == path(
        "q", (1, 70_000, 5), log_probs=(-0.5, -math.inf, -2.0), finish_reason="length", score=0.5, reward=0.625,
        prefix_length=1, step=1, parent_id=parent.path_id, path_id=back.path_id,
    )  # fmt: skip


def test_the_empty_path_is_a_path(cache, path) -> None:
    cache.commit_step(
        StepRecord(1, 0, 8, {}),
        [CacheDecision(path("q", (), step=1), Visit("q", 1, 0, 0, 0, 1, 1, "best"))],
    )
    stored = cache.paths(["q"])["q"]
    assert (len(stored), stored.log_probs.tolist()) == (0, [])


def test_records_come_back_in_order_and_a_metric_that_is_not_finite_as_nan(cache) -> None:
    cache.commit_step(StepRecord(1, 0, 8, {"kl": math.nan, "reward": 0.5}), [])
    cache.commit_step(StepRecord(2, 1, 16, {"reward": 1}), [])
    first, second = cache.records()
    assert math.isnan(first.metrics["kl"]) and first.metrics["reward"] == 0.5
    assert second == StepRecord(2, 1, 16, {"reward": 1.0})
    assert cache.records(after=1) == [second]


def test_steps_follow_each_other_without_gap_or_repetition(cache, commit) -> None:
    commit(cache, 1, {"q": (1,)})
    for wrong in (0, 1, 3):
        with pytest.raises(CacheError, match=f"step {wrong} cannot be committed, the latest step is 1"):
            commit(cache, wrong, {"q": (2,)})
    assert ids_at(cache)["q"] == (1,)


def test_no_step_before_the_initial_cache_is_complete(reopen, commit) -> None:
    with reopen() as cache:
        with pytest.raises(CacheError, match="initial cache is not complete"):
            commit(cache, 0, {})
        assert cache.latest_step == -1


def test_the_initial_cache_fills_in_batches_and_then_is_closed(reopen, path) -> None:
    with reopen() as cache:
        assert (cache.latest_step, cache.initialised, cache.count()) == (-1, False, 0)
        cache.commit_initial([path("q")])
    with reopen() as cache:  # interrupted between two batches
        assert cache.question_ids() == ["q"] and not cache.initialised
        cache.commit_initial([path("r"), path("s")])
        cache.commit_initial([])
        cache.mark_initialised()
        cache.mark_initialised()
        assert (cache.latest_step, cache.initialised, cache.count()) == (0, True, 3)
        with pytest.raises(CacheError, match="initial cache is complete"):
            cache.commit_initial([path("t")])


def test_an_initial_path_has_step_0_and_no_parent(reopen, path) -> None:
    with reopen() as cache:
        for wrong in ({"step": 1}, {"parent_id": 1}, {"prefix_length": 2}):
            with pytest.raises(CacheError, match="path of question r"):
                cache.commit_initial([path("q"), path("r", **wrong)])
        assert cache.count() == 0


def test_a_batch_of_initial_paths_enters_whole_or_not_at_all(reopen, path) -> None:
    with reopen() as cache:
        cache.commit_initial([path("q", (1,))])
        with pytest.raises(CacheError, match="refused the rows"):
            cache.commit_initial([path("r"), path("q", (2,))])
        assert ids_at(cache) == {"q": (1,)}


def test_a_step_with_one_wrong_row_leaves_nothing(cache, path, visit) -> None:
    good = CacheDecision(path("q", (9,), step=1), visit("q", 1))
    record = StepRecord(1, 0, 8, {})
    wrong = {
        "visit of question r at step 2": CacheDecision(None, visit("r", 2)),
        "came with a visit of q": CacheDecision(path("r", step=1), visit("q", 1)),
        "is of step 0, not of step 1": CacheDecision(path("r"), visit("r", 1)),
        "3 tokens and 1 log-probs": CacheDecision(path("r", step=1, log_probs=(-1.0,)), visit("r", 1)),
        "cannot be stored: log-prob nan": CacheDecision(path("r", (1,), step=1, log_probs=(math.nan,)), visit("r", 1)),
        "refused the rows": good,
        "(?i)foreign key": CacheDecision(path("r", step=1, parent_id=777), visit("r", 1)),
    }
    for message, decision in wrong.items():
        with pytest.raises(CacheError, match=message):
            cache.commit_step(record, [good, decision])
        assert (cache.latest_step, cache.visits(["q", "r"]), ids_at(cache)["q"]) == (0, {}, (1, 2, 3))
    cache.commit_step(record, [good])


def test_rollback_removes_what_is_newer_and_the_same_rows_follow_again(cache, commit) -> None:
    commit(cache, 1, {"q": (1, 9)})
    commit(cache, 2, {"q": (7,), "r": (8,)})
    before = cache.paths(["q", "r"])
    commit(cache, 3, {"q": (6,)})
    assert cache.rollback(1) == 2
    assert cache.latest_step == 1
    assert ids_at(cache) == {"q": (1, 9), "r": (4, 5)}
    assert cache.visits(["q", "r"]).keys() == {"q"}
    assert [record.step for record in cache.records()] == [1]
    commit(cache, 2, {"q": (7,), "r": (8,)})
    assert cache.paths(["q", "r"]) == before  # path ids too


def test_rollback_removes_children_with_their_parents(cache, path, visit) -> None:
    for step in (1, 2, 3):
        child = path("q", (step,), step=step, parent_id=cache.paths(["q"])["q"].path_id)
        cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(child, visit("q", step))])
    assert cache.rollback(0) == 3
    assert ids_at(cache) == {"q": (1, 2, 3), "r": (4, 5)}


def test_a_cache_behind_its_checkpoint_is_refused(cache, commit) -> None:
    commit(cache, 1, {"q": (1,)})
    for step in (2, -1):
        with pytest.raises(CacheError, match="ends at step 1.*restore the copy"):
            cache.rollback(step)


def test_a_thousand_questions_are_read_in_chunks_without_loss(reopen, path, commit) -> None:
    names = [f"question-{number}" for number in range(1200)]
    with reopen() as cache:
        cache.commit_initial([path(name, (number,) * 50) for number, name in enumerate(names)])
        cache.mark_initialised()
        commit(cache, 1, {name: (7,) for name in names[::2]})
        variables = []
        event.listen(cache._database.engine, "before_cursor_execute", lambda *args: variables.append(len(args[3])))
        found = cache.paths([*names, "unknown", names[0]])
        assert cache.with_path([*names, "unknown"]) == set(names)
        assert max(variables) < 999  # what every SQLite takes in one query
        assert found.keys() == set(names)
        assert tuple(found[names[2]].token_ids) == (7,) and tuple(found[names[3]].token_ids) == (3,) * 50
        assert len(cache.visits(names)) == 600
        assert cache.count() == 1200 and cache.question_ids() == sorted(names)


# ── Progress of a bulk initialisation ──


def test_an_initialisation_says_how_far_it_came_in_the_transaction_of_its_paths(reopen, path):
    with reopen() as cache:
        assert cache.initial_reached == (0, 0)
        cache.commit_initial([path("a")], 10, (0, 4))
        cache.commit_initial([], 5, (1, 2))
        with pytest.raises(CacheError):
            cache.commit_initial([path("a")], 5, (1, 7))  # a second path of one question: none is stored
    with reopen() as cache:
        assert cache.initial_reached == (1, 2)
        assert cache.initial_tokens == 15


def test_what_a_step_reads_and_writes_is_found_by_an_index(cache, commit, file) -> None:
    """No statement of a step scans a whole table."""
    commit(cache, 1, {"q": (1,), "r": None})
    cache.least_recently_visited(1)  # made once in a run
    seen: list[tuple] = []
    event.listen(cache._database.engine, "before_cursor_execute", lambda *args: seen.append((args[2], args[3])))
    cache.least_recently_visited(2, {"q"})
    cache.paths(["q", "r"])
    cache.visits(["q", "r"])
    cache.with_path(["q", "r"])
    commit(cache, 2, {"q": (2,), "s": (3,)})
    statements = [(text, values) for text, values in list(seen) if text.startswith(("SELECT", "INSERT"))]
    assert len(statements) >= 5
    with cache._database.engine.connect() as connection:
        for text, values in statements:
            first = values[0] if isinstance(values, list) else values
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", first)]
            through = [line for line in plan if line.startswith("SCAN") and "SUBQUERY" not in line and "anon" not in line]
            assert through == [], (text, plan)


# ── Several paths per question ──


def test_each_slot_has_its_own_newest_path(cache, path, visit) -> None:
    def commit(step, own, *others):
        made = [path("q", ids, step=step, slot=slot) for slot, ids in others]
        decision = CacheDecision(path("q", own, step=step) if own else None, visit("q", step), tuple(made))
        cache.commit_step(StepRecord(step, 0, step, {}), [decision])

    commit(1, (1, 9), (1, (7, 7)), (2, (8, 8)))
    commit(2, None, (1, (6, 6)))
    assert {slot: tuple(p.token_ids) for slot, p in cache.slots(["q"])["q"].items()} == {0: (1, 9), 1: (6, 6), 2: (8, 8)}
    assert {slot: tuple(p.token_ids) for slot, p in cache.slots(["q"], 1)["q"].items()} == {0: (1, 9), 1: (7, 7), 2: (8, 8)}
    assert ids_at(cache)["q"] == (1, 9)  # the others are not the question's own path
    cache.rollback(1)
    assert tuple(cache.slots(["q"])["q"][1].token_ids) == (7, 7)


def test_pruning_keeps_the_newest_path_of_every_slot(cache, path, visit) -> None:
    for step in (1, 2):
        others = (path("q", (step, step), step=step, slot=1),)
        cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(None, visit("q", step), others)])
    cache.prune(2)
    assert {slot: tuple(p.token_ids) for slot, p in cache.slots(["q"])["q"].items()} == {0: (1, 2, 3), 1: (2, 2)}
    assert cache.verify() == []


def test_a_question_whose_only_path_is_in_another_slot_is_replayed_too(cache, path, visit) -> None:
    wrong = (path("s", step=1, slot=1),)
    cache.least_recently_visited(3)
    cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(None, visit("s", 1), wrong)])
    assert cache.least_recently_visited(3) == ["q", "r", "s"]


@pytest.mark.parametrize("again", [True, False])
def test_a_question_with_an_imported_path_alone_is_replayed_after_its_first_visit(tmp_path, path, visit, again) -> None:
    """Which is bare, and may store nothing."""
    url = f"sqlite:///{tmp_path}/imported.db"
    with PathCache.open(url, {}) as cache:
        cache.commit_initial([path("q"), path("s", slot=1)])
        cache.mark_initialised()
        assert cache.least_recently_visited(3) == ["q"]
        cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(None, visit("s", 1))])
        assert again or cache.least_recently_visited(3) == ["q", "s"]
    with PathCache.open(url) as cache:
        assert cache.least_recently_visited(3) == ["q", "s"]


def test_every_visit_is_read_oldest_first(cache, visit) -> None:
    for step in (1, 2):
        cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(None, visit("q", step))])
    assert cache.all_visits(["q", "r"]) == {"q": (visit("q", 1), visit("q", 2))}
