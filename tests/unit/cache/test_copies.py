"""Every checkpoint has a consistent copy of the cache, so the checkpoint folder is enough to resume (docs/resume.md)."""

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from openrlhf_rpo.cache import PathCache, sqlite
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, CacheLocked, CacheUnwritable
from openrlhf_rpo.cache.models import Base
from openrlhf_rpo.cache.session import make_engine, parse_url


@pytest.fixture
def copy(tmp_path) -> str:
    return str(tmp_path / "checkpoint" / "step_1" / "rpo_cache.db")


def empty(url: str) -> None:
    """Lose the database: no file, no tables."""
    parsed, file = parse_url(url)
    if file is not None:
        file.unlink()
        return
    engine = make_engine(url)
    with engine.begin() as connection:
        for table in ("alembic_version", *reversed(Base.metadata.tables)):
            connection.exec_driver_sql(f"DROP TABLE {table} CASCADE")
    engine.dispose()


def test_a_copy_holds_the_cache_of_its_moment(cache, commit, copy, reopen, url) -> None:
    commit(cache, 1, {"q": (1, 9)})
    expected = cache.paths(["q", "r"]), cache.visits(["q"]), cache.records()
    cache.copy_to(copy)
    commit(cache, 2, {"q": (7,)})
    cache.close()
    assert not PathCache.is_missing(url)
    empty(url)
    assert PathCache.is_missing(url)
    PathCache.restore(copy, url)
    with reopen() as restored:
        assert restored.verify() == []
        assert restored.initialised and restored.latest_step == 1
        assert (restored.paths(["q", "r"]), restored.visits(["q"]), restored.records()) == expected
        commit(restored, 2, {"q": (7,)})


def test_a_copy_needs_no_locks_of_its_file_system(cache, tmp_path, monkeypatch) -> None:
    """Here another program holds those of the file."""
    target = tmp_path / "_actor" / "global_step1" / "temporary.db"
    target.parent.mkdir(parents=True)
    monkeypatch.setattr(sqlite, "replacing", lambda path: contextlib.nullcontext(path))
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        cache.copy_to(str(target))
        with PathCache.open_to_read(f"sqlite:///{target}") as copied:
            assert list(copied.iter_paths()) == list(cache.iter_paths()) and copied.verify() == []
    finally:
        holder.communicate()


def test_a_snapshot_is_of_its_moment_whichever_thread_copies_it_and_whatever_is_committed(cache, commit, copy) -> None:
    commit(cache, 1, {"q": (1, 9)})
    expected = list(cache.iter_paths(1))
    with cache.snapshot() as snapshot:
        commit(cache, 2, {"q": (7,)})
        with ThreadPoolExecutor(1) as thread:
            thread.submit(snapshot.copy_to, copy).result()
        commit(cache, 3, {"q": (8,)})
    assert cache.latest_step == 3
    with PathCache.open_to_read(f"sqlite:///{copy}") as copied:
        assert copied.latest_step == 1 and list(copied.iter_paths(1)) == expected


def test_a_copy_is_one_file_that_replaces_an_older_one(cache, commit, copy) -> None:
    cache.copy_to(copy)
    commit(cache, 1, {"q": (1, 9)})
    with open(copy, "rb") as older:
        content = older.read()
        cache.copy_to(copy)
        older.seek(0)
        assert older.read() == content  # replaced by name, never overwritten in place
    assert os.listdir(os.path.dirname(copy)) == ["rpo_cache.db"]
    connection = sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)
    assert connection.execute("SELECT max(step) FROM steps").fetchone() == (1,)
    connection.close()


def test_a_copy_is_consistent_while_the_original_goes_on(cache, commit, tmp_path) -> None:
    failures = []

    def write() -> None:
        try:
            for step in range(1, 101):
                commit(cache, step, {"q": (step,), "r": (step, step)})
        except CacheError as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    copies = []
    while writer.is_alive() and len(copies) < 10:
        copies.append(tmp_path / f"copy_{len(copies)}.db")
        cache.copy_to(str(copies[-1]))
    writer.join()
    assert not failures and cache.latest_step == 100
    for name in copies:
        connection = sqlite3.connect(name)
        newest = [connection.execute(f"SELECT max(step) FROM {t}").fetchone()[0] for t in ("paths", "visits", "steps")]
        counts = [connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("paths", "visits", "steps")]
        connection.close()
        step = newest[2] or 0
        assert newest in ([step] * 3, [0, None, None])
        assert counts == [2 + 2 * step, 2 * step, step]


def test_a_copy_that_fails_leaves_the_older_one_whole(cache, commit, copy, monkeypatch) -> None:
    cache.copy_to(copy)
    commit(cache, 1, {"q": (1, 9)})

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CacheUnwritable, match="step_1/rpo_cache.db.*No space left"):
        cache.copy_to(copy)
    assert os.listdir(os.path.dirname(copy)) == ["rpo_cache.db"]
    connection = sqlite3.connect(copy)
    assert connection.execute("SELECT count(*) FROM steps").fetchone() == (0,)
    connection.close()


def test_a_copy_where_no_folder_can_be_is_refused_by_name(cache, tmp_path) -> None:
    (tmp_path / "occupied").write_text("")
    with pytest.raises(CacheUnwritable, match="occupied/copy.db"):
        cache.copy_to(str(tmp_path / "occupied" / "copy.db"))


def test_restoring_never_replaces_a_database(cache, copy, url) -> None:
    cache.copy_to(copy)
    with pytest.raises(CacheLocked):
        PathCache.restore(copy, url)
    cache.close()
    with pytest.raises(CacheError, match="exists; remove it before restoring"):
        PathCache.restore(copy, url)


def test_a_log_left_by_the_missing_database_is_not_replayed(cache, commit, copy, reopen, file, url) -> None:
    cache.copy_to(copy)
    commit(cache, 1, {"q": (1, 9)})
    log = file.with_name(file.name + "-wal")
    content = log.read_bytes()
    assert content
    cache.close()
    file.unlink()
    log.write_bytes(content)
    PathCache.restore(copy, url)
    with reopen() as restored:
        assert restored.latest_step == 0
        assert tuple(restored.paths(["q"])["q"].token_ids) == (1, 2, 3)


def test_a_damaged_copy_is_refused_and_nothing_takes_its_place(cache, copy, file, url) -> None:
    cache.copy_to(copy)
    cache.close()
    file.unlink()
    os.truncate(copy, os.path.getsize(copy) // 2)
    with pytest.raises(CacheCorrupt, match=copy):
        PathCache.restore(copy, url)
    assert os.listdir(file.parent) == [file.name + ".lock"]


@pytest.mark.parametrize("there", ["sqlite", "postgresql"])
def test_a_copy_with_a_damaged_row_is_refused_by_name_and_another_one_advised(cache, tmp_path, there, postgres_url) -> None:
    copy = tmp_path / "ckpt" / "_actor" / "global_step0" / "rpo_cache.db"
    cache.copy_to(str(copy))
    with contextlib.closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("UPDATE paths SET score = 0.5")
    other = f"sqlite:///{tmp_path}/other/c.db" if there == "sqlite" else postgres_url()
    latest = re.escape(str(copy.parents[1] / "latest"))
    with pytest.raises(CacheCorrupt, match=f"{copy} is damaged: .* name another one in {latest}, and resume from that"):
        PathCache.restore(str(copy), other)
    assert PathCache.is_missing(other)


@pytest.mark.parametrize("there", ["sqlite", "postgresql"])
def test_a_copy_is_the_same_cache_in_either_database(cache, commit, copy, there, postgres_url, tmp_path) -> None:
    """From SQLite or PostgreSQL (the fixtures) into the other one or the same one (``there``), row by row."""
    commit(cache, 1, {"q": (1, 70_000), "s": (5,)})
    cache.record_evaluation(1, {"pass1": 1 / 3})
    cache.copy_to(copy)
    other = f"sqlite:///{tmp_path}/other/c.db" if there == "sqlite" else postgres_url()
    PathCache.restore(copy, other)
    with PathCache.open(other, {"data": "d1", "tokenizer": "t1"}) as moved:
        assert moved.verify() == []
        for step in (0, 1):
            assert list(moved.iter_paths(step)) == list(cache.iter_paths(step))
        assert (moved.records(), moved.evaluations()) == (cache.records(), cache.evaluations())
        assert moved.visits(["q", "s"]) == cache.visits(["q", "s"])
        commit(moved, 2, {"q": (9,)})
        commit(cache, 2, {"q": (9,)})
        assert moved.paths(["q"]) == cache.paths(["q"])  # the next ids are the same


def test_a_missing_copy_is_named(copy, url) -> None:
    with pytest.raises(CacheError, match=f"no copy of a path cache at {copy}"):
        PathCache.restore(copy, url)
