"""Only whole steps are left when a process dies or the disk is full."""

import os
import random
import resource
import subprocess

import pytest
from sqlalchemy import event

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.errors import CacheLocked, CacheUnwritable


@pytest.mark.parametrize("statement", ["INSERT INTO paths", "INSERT INTO visits", "INSERT INTO steps"])
def test_a_step_is_one_transaction(url, statement, child) -> None:
    assert child(url, statement).wait(60) == 9
    with PathCache.open(url, {}) as cache:
        assert cache.latest_step == 1
        assert tuple(cache.paths(["q"])["q"].token_ids) == (1,)
        assert cache.visits(["q"])["q"].step == 1


def test_every_step_is_on_the_disk_when_its_commit_returns(url, file, child) -> None:
    assert child(url, "killed after the commit").wait(60) == -9
    with PathCache.open(url, {}) as cache:
        assert cache.latest_step == 1
        assert tuple(cache.paths(["q"])["q"].token_ids) == (1,)
        with cache._database.engine.connect() as connection:
            pragmas = [connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in ("synchronous", "journal_mode")]
        assert pragmas == [2, "wal"]  # 2 is FULL: the log is synced at each commit


def test_a_full_disk_is_reported_and_what_was_committed_is_whole(url, file, child) -> None:
    process = child(url, "disk full", stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    kind, step, message = output.split(maxsplit=2)
    assert kind == "CacheUnwritable" and "earlier ones are whole; free space" in message
    assert f"latest {int(step) - 1}" in output
    with PathCache.open(url, {}) as cache:
        assert cache.latest_step == int(step) - 1 >= 1
        assert cache.paths(["q"])["q"].step == int(step) - 1


def test_a_step_follows_a_full_disk_once_there_is_space(cache, commit, file) -> None:
    @event.listens_for(cache._database.engine, "begin")
    def limit(connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    long = tuple(random.Random(0).choices(range(150_000), k=40_000))
    pages = 1  # SQLite takes the present size when it is larger
    with pytest.raises(CacheUnwritable, match="database or disk is full"):
        commit(cache, 1, {"q": long})
    assert cache.latest_step == 0
    pages = 1_000_000
    commit(cache, 1, {"q": long})
    assert tuple(cache.paths(["q"])["q"].token_ids) == long


def test_two_processes_on_one_cache_are_refused_and_the_first_is_named(url, child) -> None:
    first = child(url, "hold", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout.readline() == "open\n"
    with pytest.raises(CacheLocked, match=f"in use by process {first.pid} on "):
        PathCache.open(url, {})
    first.communicate("")
    PathCache.open(url, {}).close()


def test_a_killed_process_leaves_no_lock(url, child) -> None:
    first = child(url, "hold", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout.readline() == "open\n"
    first.kill()
    first.communicate()
    PathCache.open(url, {}).close()


def test_one_process_opens_a_cache_once(cache, reopen) -> None:
    with pytest.raises(CacheLocked, match=f"process {os.getpid()}"):
        reopen()


def test_a_forked_child_does_not_keep_the_lock(url) -> None:
    cache = PathCache.open(url, {})
    reader, writer = os.pipe()
    begun, beginning = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.write(beginning, b".")  # the copy of the lock was dropped before ``fork`` returned here
        os.read(reader, 1)  # alive until the parent closes the pipe
        os._exit(0)
    cache.close()
    try:
        os.read(begun, 1)
        PathCache.open(url, {}).close()
    finally:
        for end in (reader, writer, begun, beginning):
            os.close(end)
        os.waitpid(pid, 0)


def test_a_lock_that_cannot_name_its_holder_is_a_full_disk_and_is_not_kept(file) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        file.parent.mkdir()
        with pytest.raises(CacheUnwritable, match="cannot write rpo_cache.db.lock beside it .* free space on its disk"):
            PathCache.open(f"sqlite:///{file}", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    PathCache.open(f"sqlite:///{file}", {}).close()
