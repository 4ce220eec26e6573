"""A cache refuses another run, schema or file and says which."""

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
import traceback

import pytest

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, CacheMismatch, CacheUnwritable


def page_size_bytes(file) -> int:
    return int.from_bytes(file.read_bytes()[16:18], "big")


def test_another_data_set_is_refused_and_named(cache, url, file) -> None:
    cache.close()
    with pytest.raises(CacheMismatch) as refusal:
        PathCache.open(url, {"data": "d2", "tokenizer": "t1", "template": "p1"})
    message = str(refusal.value)
    assert str(file) in message
    assert "data fingerprint differs (cached d1, this run d2)" in message
    assert "template fingerprint differs (cached none, this run p1)" in message
    assert "tokenizer" not in message
    assert "Use another --ckpt.path or --rpo.cache.url, or remove" in message


def test_a_fingerprint_that_an_older_cache_lacks_is_taken_from_the_first_run_that_has_it(cache, url) -> None:
    cache.close()
    known = {"data": "d1", "tokenizer": "t1"}
    PathCache.open(url, known | {"weights": "w1"}).close()
    with pytest.raises(CacheMismatch, match=r"weights fingerprint differs \(cached w1, this run w2\)"):
        PathCache.open(url, known | {"weights": "w2"})


def test_a_refused_run_leaves_the_cache_free_and_unchanged(cache, url, reopen) -> None:
    cache.close()
    with pytest.raises(CacheMismatch):
        PathCache.open(url, {})
    with reopen() as same:
        assert same.count() == 2


def test_a_database_of_something_else_is_left_alone(reopen, file) -> None:
    file.parent.mkdir()
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE paths (x)")
    connection.close()
    with pytest.raises(CacheError, match="is not a path cache"):
        reopen()
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("paths",)]
    connection.close()


def test_a_file_that_is_no_database_is_refused_by_name(reopen, file) -> None:
    file.parent.mkdir()
    file.write_text("weights, perhaps\n" * 100)
    with pytest.raises(CacheCorrupt, match=f"{file}: file is not a database"):
        reopen()


@pytest.mark.parametrize(("name", "is_own"), [("rpo_cache.db", True), ("model.safetensors", False)])
def test_only_what_looks_like_a_cache_may_be_removed_on_our_word(tmp_path, name, is_own) -> None:
    (tmp_path / name).write_text("weights, perhaps\n" * 100)
    with pytest.raises(CacheCorrupt) as caught:
        PathCache.open(f"sqlite:///{tmp_path / name}", {})
    assert ("rm -f" in str(caught.value)) is is_own and ("Is it a path cache?" in str(caught.value)) is not is_own


def test_a_damaged_page_is_refused_when_the_cache_is_opened(reopen, path, file) -> None:
    with reopen() as cache:
        cache.commit_initial([path(f"q{i}", tuple(range(i, i + 900))) for i in range(50)])
    content = bytearray(file.read_bytes())
    size = page_size_bytes(file)
    # The last leaf of a table (type 13) holds the newest paths, which opening has no other reason to read.
    leaf = max(start for start in range(size, len(content), size) if content[start] == 13)
    content[leaf : leaf + 8] = b"\xff" * 8
    file.write_bytes(content)
    with pytest.raises(CacheCorrupt, match=str(file)):
        reopen()


@pytest.mark.parametrize("column", ["token_ids", "log_probs"])
def test_a_flipped_byte_in_a_path_is_reported_when_it_is_read(cache, reopen, url, file, column) -> None:
    cache.close()
    with sqlite3.connect(file) as connection:
        (blob,) = connection.execute(f"SELECT {column} FROM paths WHERE question_id = 'q'").fetchone()
    connection.close()
    content = file.read_bytes()
    assert content.count(blob) == 1  # r has other ids and fewer log-probs
    damaged = blob[:-1] + bytes([blob[-1] ^ 1])
    file.write_bytes(content.replace(blob, damaged))
    with pytest.raises(CacheCorrupt, match=rf"{file} is damaged: path 1 of question q \(step 0\) is damaged"):
        reopen()
    with PathCache.open_to_read(url) as reader:
        assert tuple(reader.paths(["r"])["r"].token_ids) == (4, 5)
        with pytest.raises(CacheCorrupt, match=rf"{file}: path 1 of question q \(step 0\) is damaged"):
            reader.paths(["q", "r"])


def test_a_damaged_row_is_reported_when_it_is_read(cache, url, commit, file) -> None:
    commit(cache, 1, {"q": (1,)})
    cache.close()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE paths SET n_tokens = 7 WHERE question_id = 'r'")
        connection.execute("UPDATE steps SET metrics = '{broken'")
        connection.execute("UPDATE visits SET cut = 1")
    connection.close()
    with PathCache.open_to_read(url) as reader:
        with pytest.raises(CacheCorrupt, match=r"path 2 of question r \(step 0\) is damaged \(its checksum differs"):
            reader.paths(["r"])
        assert tuple(reader.paths(["q"])["q"].token_ids) == (1,)
        with pytest.raises(CacheCorrupt, match="the visit of question q at step 1 is damaged"):
            reader.visits(["q"])
        with pytest.raises(CacheCorrupt, match=f"{file}: the record of step 1 is damaged .metrics holds"):
            reader.records()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "cache.db", "", "mysql://host/db", "postgresql+asyncpg://host/db"]
)
def test_what_names_no_file_is_refused(url) -> None:
    with pytest.raises(CacheError, match="--rpo.cache.url"):
        PathCache.open(url, {})


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "occupied").write_text("a file where a folder is needed")
    with pytest.raises(CacheUnwritable, match="occupied.*folder cannot be made"):
        PathCache.open(f"sqlite:///{tmp_path}/occupied/run/cache.db", {})


def test_a_folder_in_the_place_of_the_database_is_named(tmp_path) -> None:
    (tmp_path / "cache.db").mkdir()
    with pytest.raises(CacheUnwritable, match="unable to open database file"):
        PathCache.open(f"sqlite:///{tmp_path}/cache.db", {})


def test_a_closed_cache_says_so(cache, commit, tmp_path) -> None:
    cache.close()
    cache.close()
    for use in (lambda: cache.latest_step, lambda: commit(cache, 1, {}), lambda: cache.copy_to(f"{tmp_path}/c.db")):
        with pytest.raises(CacheError, match="was closed"):
            use()


def refusals_without_rights(folder: str) -> list[str]:
    """The errors of an unprivileged user for each file in ``folder``, from a forked child, since root may write anywhere."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            for name in ("read_only", "closed"):
                try:
                    PathCache.open(f"sqlite:///{folder}/{name}/cache.db", {})
                except CacheUnwritable as error:
                    os.write(writer, f"{error}\n".encode())
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        lines = answers.read().splitlines()
    os.waitpid(pid, 0)
    return lines


def test_a_read_only_file_or_folder_is_named() -> None:
    folder = tempfile.mkdtemp()
    try:
        os.chmod(folder, 0o755)
        for name in ("read_only", "closed"):
            PathCache.open(f"sqlite:///{folder}/{name}/cache.db", {}).close()
        os.chmod(f"{folder}/read_only/cache.db", 0o444)
        os.chmod(f"{folder}/read_only/cache.db.lock", 0o666)
        os.remove(f"{folder}/closed/cache.db.lock")
        os.chmod(f"{folder}/closed", 0o555)
        read_only, closed = refusals_without_rights(folder)
    finally:
        os.chmod(f"{folder}/closed", 0o755)
        shutil.rmtree(folder)
    assert read_only == f"Path cache {folder}/read_only/cache.db is read-only. Make the file and its folder writable."
    assert closed.startswith(f"Path cache {folder}/closed/cache.db: cannot write cache.db.lock beside it (Permission")


def test_a_file_system_without_locks_is_named_and_nothing_stays_open(url, file, monkeypatch) -> None:
    asked = []

    def flock(fd, operation):
        asked.append(fd)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(CacheUnwritable, match=r"has no locks: give --rpo.cache.url on a local disk") as refusal:
        PathCache.open(url, {})
    assert str(file) in str(refusal.value) and os.strerror(errno.ENOLCK) in str(refusal.value)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(asked[0])


def test_a_cache_that_holds_nothing_belongs_to_nobody(url) -> None:
    """A command that was refused after it had opened the cache must not lock out the corrected one."""
    PathCache.open(url, {"data": "d1"}).close()
    with PathCache.open(url, {"data": "d2"}) as cache:
        assert cache.holds_nothing
        cache.mark_initialised()
        assert not cache.holds_nothing
    with pytest.raises(CacheMismatch):
        PathCache.open(url, {"data": "d1"})
