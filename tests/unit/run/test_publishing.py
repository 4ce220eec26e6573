"""Checkpoints that are completed while training goes on, with a real cache."""

import json
import os
import pathlib
import threading
from types import SimpleNamespace

import pytest

from openrlhf_rpo.cache.errors import CacheUnwritable
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import LARGE_CACHE
from openrlhf_rpo.run.checkpoints import CACHE_FILE, Checkpoints
from openrlhf_rpo.run.publishing import Publisher
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit
from openrlhf_rpo.upstream import STAGING


@pytest.fixture
def cache(tmp_path):
    with PathCache.open(f"sqlite:///{tmp_path}/rpo_cache.db", {}) as opened:
        opened.mark_initialised()
        yield opened


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(str(tmp_path), 3, float("inf"))


def stage(checkpoints, tag):
    folder = checkpoints.path / STAGING / tag / "_actor" / tag
    folder.mkdir(parents=True)
    (folder / "weights.pt").write_text(tag)
    (folder / "metric.json").write_text(json.dumps({"metric_value": None}))


def commit(cache, step):
    cache.commit_step(StepRecord(step, 0, step, {}), [])


def step_in(checkpoints, tag):
    with PathCache.open_to_read(f"sqlite:///{checkpoints.path}/_actor/{tag}/{CACHE_FILE}") as copy:
        return copy.latest_step


@pytest.fixture
def held(monkeypatch):
    """While its event is not set, no checkpoint is published."""
    go, publish = threading.Event(), Checkpoints.publish
    monkeypatch.setattr(Checkpoints, "publish", lambda *args: go.wait(30) and publish(*args))
    return go


def test_no_name_is_looked_up_before_another_node_makes_it(cache, checkpoints, monkeypatch):
    """An NFS client may believe for a minute that a name is still absent."""
    absent, is_dir = set(), pathlib.Path.is_dir

    def believed(path):
        names = {path, *path.parents}
        if not absent & names and not is_dir(path):
            absent.update(name for name in names if not name.exists())
        return not absent & names

    monkeypatch.setattr(pathlib.Path, "is_dir", believed)
    checkpoints.claim()
    with Publisher(checkpoints, cache, None) as publisher:
        for step in (1, 2):
            commit(cache, step)
            assert not publisher.begin(f"best_global_step{step}")  # an evaluation that was not the best
            stage(checkpoints, f"global_step{step}")
            assert publisher.begin(f"global_step{step}")
            publisher.wait()
    assert absent and step_in(checkpoints, "global_step2") == 2


def test_steps_go_on_meanwhile_and_the_copy_is_of_the_checkpoint_s_step(cache, checkpoints, held, capsys):
    with Publisher(checkpoints, cache, None) as publisher:
        commit(cache, 1)
        stage(checkpoints, "global_step1")
        assert publisher.begin("global_step1")
        commit(cache, 2)
        assert checkpoints.latest() is None  # it appears when it is complete
        held.set()
        publisher.wait()
        assert checkpoints.latest() == "global_step1" and step_in(checkpoints, "global_step1") == 1
        commit(cache, 3)
    assert "Checkpoint global_step1 is complete" in capsys.readouterr().out


def test_the_end_waits_for_the_last_one(cache, checkpoints, held):
    threading.Timer(0.2, held.set).start()
    with Publisher(checkpoints, cache, None) as publisher:
        stage(checkpoints, "global_step1")
        assert publisher.begin("global_step1")
    assert checkpoints.latest() == "global_step1"


def test_one_after_the_other(cache, checkpoints, held):
    with Publisher(checkpoints, cache, None) as publisher:
        for step in (1, 2):
            commit(cache, step)
            publisher.wait()
            stage(checkpoints, f"global_step{step}")
            assert publisher.begin(f"global_step{step}")
            threading.Timer(0.2, held.set).start()
    assert [step_in(checkpoints, f"global_step{step}") for step in (1, 2)] == [1, 2]


def test_the_copy_alone_is_made_in_a_transaction_and_not_what_follows(cache, checkpoints, monkeypatch):
    """Else the database keeps what was written since."""
    used = []
    monkeypatch.setattr("openrlhf_rpo.run.checkpoints.sync", lambda _: used.append(cache._database.engine.pool.checkedout()))
    with Publisher(checkpoints, cache, None) as publisher:
        stage(checkpoints, "global_step1")
        assert publisher.begin("global_step1")
    assert used and not any(used) and step_in(checkpoints, "global_step1") == 0


def test_nothing_is_published_when_nothing_was_written(cache, checkpoints):
    with Publisher(checkpoints, cache, None) as publisher:
        assert not publisher.begin("global_step1")
    assert checkpoints.latest() is None


def test_what_fails_meanwhile_ends_the_run_with_its_own_message_and_leaves_nothing(cache, checkpoints, monkeypatch):
    def no_space(_descriptor):
        raise OSError(28, "No space left on device")

    publisher = Publisher(checkpoints, cache, None)
    stage(checkpoints, "global_step1")
    monkeypatch.setattr(os, "fsync", no_space)
    assert publisher.begin("global_step1")
    with pytest.raises(CacheUnwritable, match="No space left"):
        publisher.wait()
    monkeypatch.undo()
    assert checkpoints.latest() is None and not list(checkpoints.staging.glob("*"))
    publisher.wait()  # it was said
    commit(cache, 1)  # nothing is held


def test_an_error_of_the_run_comes_first_and_what_was_begun_is_completed(cache, checkpoints, held):
    threading.Timer(0.2, held.set).start()
    with pytest.raises(ZeroDivisionError), Publisher(checkpoints, cache, None) as publisher:
        stage(checkpoints, "global_step1")
        publisher.begin("global_step1")
        1 / 0  # noqa: B018
    assert checkpoints.latest() == "global_step1"


@pytest.mark.parametrize(
    ("option", "size", "kept_from"),
    [(None, LARGE_CACHE, None), (None, LARGE_CACHE + 1, 90), (3, 0, 97), (500, LARGE_CACHE + 1, -400)],
)
def test_a_large_cache_keeps_the_last_versions_and_what_checkpoints_need(option, size, kept_from):
    pruned = []
    cache = SimpleNamespace(size=lambda: size, prune=lambda *what: pruned.append(what))
    Publisher(SimpleNamespace(steps=lambda: {5, 100}), cache, option).prune(100)
    assert pruned == ([] if kept_from is None else [(kept_from, {5, 100})])


def test_what_is_being_published_is_not_pruned(cache, checkpoints, held):
    with Publisher(checkpoints, cache, 1) as publisher:
        for step in (1, 2):
            commit(cache, step)
        stage(checkpoints, "global_step2")
        publisher.begin("global_step2")
        for step in range(3, 11):
            commit(cache, step)
        publisher.prune(10)
        assert cache.kept_from == 9 and cache.kept_steps == [0, 2]
        held.set()


def test_an_early_best_checkpoint_keeps_its_own_paths_and_not_those_after_it(cache, checkpoints):
    for step in range(1, 41):
        path = Path("q", (1, step), None, "stop", 1.0, 1.0, step=step)
        cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(path, Visit("q", step, 0, 0, 2, 1, 1, "best"))])
        tag = {5: "best_global_step5"}.get(step, f"global_step{step}")
        if step % 5 == 0:
            stage(checkpoints, tag)
            with Publisher(checkpoints, cache, 2) as publisher:
                assert publisher.begin(tag)
    assert checkpoints.steps() == {5, 30, 35, 40}
    assert [path.step for path in cache.versions(["q"])["q"]] == [5, 30, 35, 38, 39, 40]
    assert cache.rollback(5) == 35 and tuple(cache.paths(["q"])["q"].token_ids) == (1, 5)
