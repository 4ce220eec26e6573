"""Reading a cache: steps, lineage, beside a writer, and after pruning."""

import random
import tempfile
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit

NAMES = "abc"


def child_of(cache: PathCache, question: str, step: int, bare: bool = False) -> Path:
    """A path that keeps a prefix of the question's cached path, or starts from the bare question."""
    old = None if bare else cache.paths([question]).get(question)
    prefix = old.token_ids[:2] if old else ()
    return Path(
        question, (*prefix, step), None, "stop", 1.0, 1.0, len(prefix), step, None, old.path_id if old else None
    )  # fmt: skip


def commit_children(cache: PathCache, step: int, changes: dict[str, bool | None]) -> None:
    """A step that visits the questions of ``changes``: a new path (True: from the bare question), or None."""
    decisions = [
        CacheDecision(
            None if bare is None else child_of(cache, question, step, bare), Visit(question, step, 1, 2, 3, 8, 4, "best")
        )
        for question, bare in changes.items()
    ]
    cache.commit_step(StepRecord(step, 0, step, {}), decisions)


@pytest.fixture
def grown(cache: PathCache) -> PathCache:
    """q changes in steps 1 to 3, r never, s enters in step 2."""
    for step in (1, 2, 3):
        commit_children(cache, step, {"q": False, "s": False if step == 2 else None})
    return cache


def test_the_questions_of_a_step_are_those_that_have_a_path_then(grown) -> None:
    assert [grown.question_ids(step) for step in (0, 1, 2, None)] == [
        ["q", "r"],
        ["q", "r"],
        ["q", "r", "s"],
        ["q", "r", "s"],
    ]
    assert grown.fingerprints == {"data": "d1", "tokenizer": "t1"}


@pytest.mark.parametrize("step", [0, 1, 2, 3, None])
def test_streaming_the_paths_of_a_step_is_reading_them(grown, step) -> None:
    assert list(grown.iter_paths(step)) == list(grown.paths(grown.question_ids(step), step).values())


def test_lineage_goes_back_to_the_initial_cache_and_each_path_keeps_the_head_of_the_next(grown) -> None:
    line = grown.lineage("q")
    assert [path.step for path in line] == [3, 2, 1, 0]
    for path, parent in zip(line, line[1:], strict=False):
        assert path.parent_id == parent.path_id
        assert path.token_ids[: path.prefix_length] == parent.token_ids[: path.prefix_length]
    assert grown.lineage("q", step=1) == line[2:]
    assert [path.step for path in grown.lineage("s")] == [2]
    assert grown.lineage("unknown") == []


def test_a_path_from_the_bare_question_ends_the_lineage(grown) -> None:
    commit_children(grown, 4, {"q": True})
    assert [path.step for path in grown.lineage("q")] == [4]


def test_every_visit_of_a_question_is_kept_in_order(grown) -> None:
    assert [visit.step for visit in grown.visits_of("q")] == [1, 2, 3]
    assert grown.visits_of("r") == []


# ── Beside a writer ──


def test_a_reader_sees_what_is_committed_while_the_writer_goes_on(grown, url) -> None:
    with PathCache.open_to_read(url) as reader:
        assert reader.latest_step == 3
        stream = reader.iter_paths()
        first = next(stream)
        commit_children(grown, 4, {"q": False, "r": False, "s": False})
        assert [first, *stream] == list(grown.iter_paths(step=3))  # one snapshot
        assert reader.latest_step == 4
        assert list(reader.iter_paths()) == list(grown.iter_paths())


def test_a_reader_changes_nothing(grown, url, file) -> None:
    with PathCache.open_to_read(url) as reader:
        for change in (reader.vacuum, lambda: reader.rollback(1), lambda: reader.prune(2)):
            with pytest.raises(CacheError):
                change()
    assert grown.latest_step == 3 and grown.kept_from == 0


def test_where_there_is_no_cache_a_reader_makes_none(file, url) -> None:
    with pytest.raises(CacheError, match=f"no path cache at {file}"):
        PathCache.open_to_read(url)
    assert not file.parent.exists()


def test_a_copy_is_read_where_nothing_can_be_written(grown, tmp_path) -> None:
    copy = tmp_path / "copy" / "rpo_cache.db"
    grown.copy_to(str(copy))
    with PathCache.open_to_read(f"sqlite:///{copy}") as reader:
        assert list(reader.iter_paths()) == list(grown.iter_paths())
    assert [file.name for file in copy.parent.iterdir()] == ["rpo_cache.db"]


# ── Pruning ──


def snapshot(cache: PathCache, step: int) -> dict[str, tuple]:
    """The cache at a step, without parents, because pruning may remove them."""
    return {
        path.question_id: (path.path_id, path.token_ids, path.prefix_length, path.step) for path in cache.iter_paths(step)
    } | {"visits": tuple(cache.visits(NAMES, step).values())}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.none() | st.booleans(), max_size=3), min_size=1, max_size=7),
    st.data(),
)
def test_after_pruning_every_step_that_is_kept_reads_as_before_also_after_a_rollback(history, data) -> None:
    with tempfile.TemporaryDirectory() as folder, PathCache.open(f"sqlite:///{folder}/c.db", {}) as cache:
        cache.commit_initial([Path(name, (1, 2, 3), None, "stop", 1.0, 1.0) for name in NAMES[:2]])
        cache.mark_initialised()
        for step, changes in enumerate(history, 1):
            commit_children(cache, step, changes)
        before = [snapshot(cache, step) for step in range(len(history) + 1)]
        lineages = {name: [path.step for path in cache.lineage(name)] for name in NAMES}
        rows = sum(len({(p[0]) for s in before if (p := s.get(name))}) for name in NAMES)

        steps = st.integers(0, len(history))
        readable = list(range(len(history) + 1))
        for keep in sorted(data.draw(st.lists(steps, min_size=1, max_size=3))):
            checkpoints = data.draw(st.sets(steps, max_size=3))
            rows -= cache.prune(keep, checkpoints)
            readable = [step for step in readable if step >= keep or step in checkpoints]
            assert [snapshot(cache, step) for step in readable] == [before[step] for step in readable]
        stored = {name: {p[3] for step in readable if (p := before[step].get(name))} for name in NAMES}
        assert rows == sum(map(len, stored.values()))
        assert cache.verify() == []  # parents exist
        for name in NAMES:
            assert [path.step for path in cache.lineage(name)] == list(takewhile(stored[name].__contains__, lineages[name]))

        back = data.draw(st.sampled_from(readable))
        cache.rollback(back)
        for step in range(back + 1):
            if step in readable:
                assert snapshot(cache, step) == before[step]
            else:
                with pytest.raises(CacheError, match=f"oldest that can be read is step {min(keep, back)}"):
                    cache.rollback(step)


def test_what_was_pruned_is_refused_not_read_as_missing(grown) -> None:
    assert grown.prune(2) == 2  # q's paths of steps 0 and 1
    for read in (grown.question_ids, lambda step: list(grown.iter_paths(step)), lambda step: grown.lineage("q", step)):
        with pytest.raises(CacheError, match="paths of step 1 were pruned; the oldest that can be read is step 2"):
            read(1)
    last = grown.lineage("q")[-1]
    assert (last.step, last.parent_id, last.prefix_length) == (2, None, 2)


def test_steps_of_checkpoints_stay_readable_and_what_is_between_them_goes(grown) -> None:
    for step in range(4, 10):
        commit_children(grown, step, {"q": False})
    kept = [list(grown.iter_paths(step)) for step in (1, 5)]
    assert grown.prune(8, [1, 5, 8]) == 6  # of steps 0 to 7 all but two
    assert [[p.token_ids for p in grown.iter_paths(step)] for step in (1, 5)] == [[p.token_ids for p in k] for k in kept]
    with pytest.raises(
        CacheError, match="step 6 were pruned; the oldest that can be read is step 8, and before it only 1, 5"
    ):
        grown.rollback(6)
    assert grown.verify() == [] and grown.kept_from == 8


def test_of_the_steps_kept_by_one_pruning_the_next_may_only_keep_fewer(grown) -> None:
    assert [grown.prune(3, steps) for steps in ([0, 2], [1, 2], [0])] == [1, 1, 1]
    for step in range(3):
        with pytest.raises(CacheError, match=f"step {step} were pruned; the oldest that can be read is step 3[.]"):
            grown.paths("q", step)


def test_after_going_back_to_a_kept_step_the_run_goes_on_as_from_any_other(grown) -> None:
    grown.prune(3, [0, 1])
    assert grown.rollback(1) == 2 and grown.kept_from == 1
    for step in (2, 3):
        commit_children(grown, step, {"q": False})
    assert grown.rollback(2) == 1
    assert grown.prune(2, [0]) == 1  # the path of step 1
    assert grown.rollback(0) == 2
    assert [path.step for path in grown.lineage("q")] == [0]


def test_pruning_twice_or_less_far_removes_nothing_more(grown) -> None:
    assert [grown.prune(step) for step in (2, 2, 1, 3)] == [2, 0, 0, 1]
    assert grown.kept_from == 3


def test_steps_that_are_not_committed_cannot_be_kept(grown) -> None:
    with pytest.raises(CacheError, match="ends at step 3, and pruning would have to keep step 4"):
        grown.prune(4)


def test_the_size_is_that_of_the_rows(cache, commit) -> None:
    ids = tuple(random.Random(0).choices(range(2**16), k=20_000))
    before = cache.size()
    for step in range(1, 9):
        commit(cache, step, {"q": ids})
    assert 8 * 40_000 < cache.size() - before < 8 * 90_000


def test_the_space_of_pruned_paths_is_used_again(cache, commit, file) -> None:
    """30 updates of 40 kB, pruned step by step."""
    for step in range(1, 31):
        commit(cache, step, {"q": tuple(random.Random(step).choices(range(2**16), k=20_000))})
        cache.prune(step)
        assert cache.size() < 200_000
    cache.close()
    assert file.stat().st_size < 400_000


def test_vacuum_gives_the_space_of_pruned_paths_back(grown, reopen, commit, file) -> None:
    for step in range(4, 12):
        commit(grown, step, {"q": tuple(random.Random(step).choices(range(150_000), k=20_000))})
    grown.prune(11)
    kept = list(grown.iter_paths())
    grown.close()
    size = file.stat().st_size
    with reopen() as cache:
        cache.vacuum()
        assert file.stat().st_size < size / 3
        assert list(cache.iter_paths()) == kept


def test_every_version_of_a_question_comes_oldest_first_and_without_log_probs(cache, commit):
    commit(cache, 1, {"q": (1, 2, 9), "r": None})
    commit(cache, 2, {"q": (1, 7)})
    found = cache.versions(["q", "r", "unknown"])
    assert [tuple(path.token_ids) for path in found["q"]] == [(1, 2, 3), (1, 2, 9), (1, 7)]
    assert {path.log_probs for path in found["q"]} == {None} and cache.paths(["q"])["q"].log_probs is not None
    assert ([path.step for path in found["r"]], found["unknown"]) == ([0], [])


def test_what_happened_after_a_step(cache, commit):
    for step in (1, 2, 3):
        commit(cache, step, {"q": (1, step), "r": None})
    assert [(row.question_id, row.step) for row in cache.outlines(after=1)] == [("q", 2), ("q", 3)]
    assert [(visit.step, visit.question_id) for visit in cache.visits_after(2)] == [(3, "q"), (3, "r")]
    assert len(list(cache.visits_after())) == 6 and list(cache.visits_after(3)) == []
