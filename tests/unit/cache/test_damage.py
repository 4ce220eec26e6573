"""Opening a cache finds every flipped byte that holds data (docs/cache.md)."""

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from openrlhf_rpo.cache import PathCache, inspection, sqlite
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit

QUESTIONS = [f"question-{number:02}" for number in range(24)]
FLIPS = 80


def fill(cache: PathCache, steps: int, n_tokens: int = 700) -> None:
    """A real history: C(0), then steps that replace paths by their children, visits, records, evaluations."""
    draw = random.Random(0)

    def tokens() -> tuple[int, ...]:
        return tuple(draw.choices(range(150_000), k=n_tokens))

    cache.commit_initial([Path(name, tokens(), (-0.5,) * n_tokens, "stop", 1.0, 0.75) for name in QUESTIONS], 9000)
    cache.mark_initialised()
    for step in range(1, steps + 1):
        names = draw.sample(QUESTIONS, 6)
        old = cache.paths(names)
        decisions = [
            CacheDecision(
                Path(name, tokens(), None, "length", 0.5, 0.25, 9, step, None, old[name].path_id),
                Visit(name, step, 3, 9, 700, 8, 4, "best"),
            )
            for name in names
        ]
        cache.commit_step(StepRecord(step, 0, 6 * step, {"rpo/score": step / 7}), decisions)
        cache.record_evaluation(step, {"pass1": step / 11})


def content(file) -> list:
    """Every value of every table, as SQLite returns it."""
    connection = sqlite3.connect(file)
    try:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return [connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in names]
    finally:
        connection.close()


def read_back(cache: PathCache) -> list:
    """Everything that the cache's methods return."""
    steps = range(cache.latest_step + 1)
    return [
        [list(cache.iter_paths(step)) for step in steps],
        [cache.visits_of(name) for name in QUESTIONS],
        [cache.lineage(name) for name in QUESTIONS],
        cache.records(),
        cache.evaluations(),
        (cache.fingerprints, cache.initialised, cache.initial_tokens, cache.least_recently_visited(99)),
    ]


@pytest.fixture
def filled(reopen, file):
    """A closed cache: one file of about 200 pages."""
    with reopen() as cache:
        fill(cache, steps=4)
        expected = read_back(cache)
    return file, expected


def test_a_flipped_byte_is_found_at_opening_or_hits_bytes_that_hold_nothing(filled, reopen, tmp_path) -> None:
    file, expected = filled
    whole, before = file.read_bytes(), content(file)
    draw = random.Random(7)
    found = 0
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        offset = draw.randrange(len(damaged))
        damaged[offset] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            cache = reopen()
        except CacheError as error:
            assert str(file) in str(error), f"byte {offset}"
            found += 1
        else:
            with cache:
                assert read_back(cache) == expected, f"byte {offset}"
            assert content(file) == before, f"byte {offset}"
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
    print(f"{FLIPS} flips: {found} found at opening, {FLIPS - found} in bytes that hold nothing")
    assert found > 0.3 * FLIPS  # about half of so small a file is empty space in its pages


def test_a_flipped_byte_in_the_log_of_a_killed_run_is_found_or_costs_its_last_steps(reopen, file, tmp_path) -> None:
    """SQLite's log checksums cut the log there, so the cache is read as of an earlier step."""
    with reopen() as cache:
        fill(cache, steps=4)
        folder = tmp_path / "killed"
        folder.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{file}{suffix}", folder / ("c.db" + suffix))  # what a killed process leaves
        at_step = [cache.paths(QUESTIONS, step) for step in range(5)]
    log = folder / "c.db-wal"
    whole, database = log.read_bytes(), (folder / "c.db").read_bytes()
    draw = random.Random(3)
    for _ in range(FLIPS // 5):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        for part in folder.iterdir():
            part.unlink()
        (folder / "c.db").write_bytes(database)
        log.write_bytes(damaged)
        try:
            with PathCache.open(f"sqlite:///{folder}/c.db") as cache:
                step = cache.latest_step
                if step >= 0:
                    assert cache.paths(QUESTIONS) == at_step[step]
                assert cache.verify() == []
        except CacheError as error:
            assert "c.db" in str(error)


def test_a_large_cache_opens_at_once_and_takes_no_step_before_all_was_read(filled, reopen, monkeypatch) -> None:
    file, _ = filled
    damage_a_path(file)
    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    with reopen() as cache:
        with pytest.raises(CacheCorrupt, match="path .* of question question-.* is damaged"):
            cache.commit_step(StepRecord(5, 0, 30, {}), [])
        with pytest.raises(CacheCorrupt, match="is damaged"):
            assert cache.latest_step  # by now every call says so
    with PathCache.open_to_read(f"sqlite:///{file}") as reader:
        assert reader.latest_step == 4


def test_closing_ends_the_reading(filled, reopen, monkeypatch) -> None:
    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    cache = reopen()
    thread = cache._inspection._thread
    cache.close()
    assert not thread.is_alive()


def test_progress_reaches_the_number_of_rows(filled, reopen, monkeypatch) -> None:
    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    with reopen() as cache:
        seen: list[tuple[int, int]] = []
        cache.wait_until_inspected(lambda done, total: seen.append((done, total)))
        rows = 24 + 4 * 6 + 4 * 6 + 4 + 4 + 5  # paths, visits, records, evaluations, entries about the run
        assert seen[-1] == (rows, rows)
        shown: list[int] = []
        assert cache.verify(lambda done, _total: shown.append(done)) == []
        assert shown[-1] == rows


READ = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM paths').fetchall(); c.close()"


def test_a_reader_that_closes_does_not_take_the_log_from_a_writer_whose_inspection_goes_on(
    filled, reopen, monkeypatch
) -> None:
    """SQLite's locks are the process's: reading the file beside an open connection, even its header, would end them."""
    file, _ = filled
    read, (check, make_folder) = threading.Event(), (inspection.structure_damages, sqlite.make_folder)
    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    monkeypatch.setattr(inspection, "structure_damages", lambda connection: (check(connection), read.set())[0])
    monkeypatch.setattr(sqlite, "make_folder", lambda place: (read.wait(60), make_folder(place)))  # the writer's first call
    with reopen() as cache:
        cache.commit_step(StepRecord(5, 0, 30, {}), [])
        subprocess.run([sys.executable, "-c", READ, file], check=True)
        assert file.with_name(f"{file.name}-wal").exists()
        cache.commit_step(StepRecord(6, 0, 36, {}), [])
        with PathCache.open_to_read(f"sqlite:///{file}") as reader:
            assert reader.latest_step == 6


def test_a_large_copy_is_read_before_the_writer_turns_on_its_log(filled, reopen, monkeypatch) -> None:
    file, expected = filled
    sqlite.make_one_file(file)  # as a checkpoint's copy is
    seconds, check = 2.5, inspection.structure_damages  # more than SQLite waits for a lock
    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    monkeypatch.setattr(inspection, "structure_damages", lambda connection: (check(connection), time.sleep(seconds))[0])
    with reopen() as cache:
        assert read_back(cache) == expected


def damage_a_path(file) -> None:
    with sqlite3.connect(file) as connection:
        (blob,) = connection.execute("SELECT token_ids FROM paths WHERE id = 7").fetchone()
    connection.close()
    whole = file.read_bytes()
    middle = whole.index(blob[20:60])
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])


@pytest.mark.parametrize(
    "remove", [lambda cache: cache.rollback(1), lambda cache: cache.prune(2)], ids=["rollback", "prune"]
)
def test_nothing_is_removed_from_a_large_cache_before_it_has_been_checked(filled, reopen, monkeypatch, remove) -> None:
    file, _ = filled
    damage_a_path(file)
    waited, wait, inspect = threading.Event(), inspection.Inspection.wait, inspection.Inspection._inspect
    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    monkeypatch.setattr(inspection.Inspection, "_inspect", lambda self: inspect(self) if waited.wait(5) else None)
    monkeypatch.setattr(inspection.Inspection, "wait", lambda self, progress=None: (waited.set(), wait(self, progress)))
    with reopen() as cache, pytest.raises(CacheCorrupt, match="is damaged"):
        remove(cache)


def test_verify_names_every_damage(filled) -> None:
    file, _ = filled
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE paths SET score = 2 WHERE id = 3")
        connection.execute("UPDATE paths SET parent_id = 1 WHERE id = 30")
        connection.execute("UPDATE visits SET cut = 99 WHERE step = 2")
        connection.execute("UPDATE steps SET metrics = '{}' WHERE step = 1")
        connection.execute("DELETE FROM steps WHERE step = 3")
    connection.close()
    with PathCache.open_to_read(f"sqlite:///{file}") as cache:
        damages = "\n".join(cache.verify())
    for named in (
        r"path 3 of question question-02 \(step 0\) is damaged \(its checksum differs\)",
        r"path 30 of question .* is damaged \(its checksum differs\)",
        r"the visit of question .* at step 2 is damaged",
        r"the record of step 1 is damaged",
        r"3 steps are recorded, and the newest is step 4",
    ):
        assert re.search(named, damages), named
    assert damages.count("the visit of") == 6


@pytest.mark.parametrize("at_once", [inspection.AT_ONCE, 0])
def test_an_inspection_that_failed_for_whatever_reason_is_no_pass(filled, reopen, monkeypatch, at_once) -> None:
    def damages(*_: object, **__: object) -> list[str]:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(inspection, "damages", damages)
    monkeypatch.setattr(inspection, "AT_ONCE", at_once)
    with pytest.raises(CacheError, match="could not be read completely .RuntimeError.*unforeseen"):
        reopen().wait_until_inspected()


def test_the_error_gives_the_command_that_brings_the_copy_back(filled, reopen) -> None:
    file, expected = filled
    copy = file.parent / "_actor" / "global_step4" / file.name
    with reopen() as cache:
        cache.copy_to(str(copy))
    (file.parent / "_actor" / "latest").write_text("global_step4")
    damage_a_path(file)
    with pytest.raises(CacheCorrupt) as refusal:
        reopen()
    message = str(refusal.value)
    assert f"resume with --ckpt.load_enable: the copy {copy} takes its place" in message
    assert os.system(message.split("`")[1]) == 0
    PathCache.restore(str(copy), f"sqlite:///{file}")  # what resuming does
    with reopen() as cache:
        assert read_back(cache) == expected


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.9, 0.999])
def test_a_file_cut_short_is_named_with_its_bytes(filled, reopen, kept) -> None:
    file, _ = filled
    size = file.stat().st_size
    os.truncate(file, int(size * kept))
    with pytest.raises(CacheCorrupt, match=rf"{file} was cut short: it has [\d,]+ of {size:,} bytes"):
        reopen()


def test_a_cache_that_another_program_writes_is_named_and_whole_afterwards(filled, reopen) -> None:
    """SQLite's own lock, held by a tool that has a transaction open on the file."""
    file, expected = filled
    other = sqlite3.connect(file, isolation_level=None)
    with reopen() as cache:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(CacheError, match=f"{file}: database is locked. Another program has the file open"):
            cache.commit_step(StepRecord(5, 0, 30, {}), [])
        other.execute("ROLLBACK")
        other.close()
        assert read_back(cache) == expected
        cache.commit_step(StepRecord(5, 0, 30, {}), [])
