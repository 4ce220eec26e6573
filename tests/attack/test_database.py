"""Forged and damaged path caches: every value, parent, table and file that no run of this package writes.

A row's checksum detects damage, not forgery, so the forged rows here have the right one.
"""

import json
import os
import sqlite3
import zlib
from datetime import datetime
from pathlib import Path as File

import pytest

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cache.codec import MOST_TOKENS, encode_token_ids
from openrlhf_rpo.cache.errors import CacheError, CacheLocked, CacheUnwritable
from openrlhf_rpo.cache.models import Base, checksum_of
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.durable import replacing
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.former import translated
from openrlhf_rpo.types import Begun, CacheDecision, Part, Path, Prefix, Question, Sample, StepRecord, Visit
from tests.attack.conftest import contents

TABLES = {table.__tablename__: table for table in Base.__subclasses__()}
DEEP = "[" * 100_000
HUGE = 2**62


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> bytes:
    """A cache of two questions and three steps. Question q has the paths 1, 3, 4 and 6; its wrong one is 5. A group of two
    samples of question r waits."""
    file = tmp_path_factory.mktemp("sound") / "rpo_cache.db"
    with PathCache.open(f"sqlite:///{file}", {"tokenizer": "t"}) as cache:
        cache.describe([Question(name, f"<u>{name}", "1", text=name) for name in "qr"], "/no/model")
        cache.commit_initial([Path(name, (1, 2, 3), (-0.5,) * 3, "stop", 1.0, 0.5) for name in "qr"], 10, (0, 2))
        cache.mark_initialised()
        for step in (1, 2, 3):
            parent = cache.paths(["q"])["q"].path_id
            parts = (Part(0, 2), Part(step - 1, 1)) if step > 1 else (Part(0, 3),)
            path = Path("q", (1, 2, step), None, "length", 1.0, 0.5, 2, step, parent_id=parent, parts=parts)
            wrong = (Path("q", (9,), None, "stop", 0.0, 0.0, step=step, slot=1),) if step == 2 else ()
            visit = Visit("q", step, 1, 2, 3, 4, 2, "best")
            prefix = Prefix((1, 2), (-0.5, -0.5), 1, cache.paths(["r"])["r"])
            begun = (Sample(prefix, (7, 8), (-0.5, -0.5), "unfinished", parts=(Part(2, 2),)),) * 2
            waiting = [Begun("r", begun, "turn", 4)] if step == 3 else []
            cache.commit_step(StepRecord(step, 0, step, {"rpo/score": 0.5}), [CacheDecision(path, visit, wrong)], waiting)
        cache.record_evaluation(3, {"pass1": 0.5})
    return file.read_bytes()


@pytest.fixture
def file(tmp_path, sound) -> File:
    file = tmp_path / "run" / "rpo_cache.db"
    file.parent.mkdir()
    file.write_bytes(sound)
    return file


def execute(file: File, *statements: str) -> None:
    connection = sqlite3.connect(file, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def forge(file: File, table: str, where: str, **values: object) -> None:
    """Change a row, whatever its columns forbid, and give it the right checksum."""
    connection = sqlite3.connect(file, isolation_level=None)
    [[made]] = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,))
    set_schema(connection, table, made.replace(" NOT NULL", ""))
    [[row]] = connection.execute(f"SELECT rowid FROM {table} WHERE {where}")
    for name, value in values.items():
        connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (value, row))
    cursor = connection.execute(f"SELECT * FROM {table} WHERE rowid = ?", (row,))
    stored = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
    plain = {"metrics": json.loads, "created_at": datetime.fromisoformat, "start_bare": bool}
    for name in plain.keys() & stored.keys() - values.keys():
        stored[name] = plain[name](stored[name])
    connection.execute(f"UPDATE {table} SET checksum = ? WHERE rowid = ?", (checksum_of(TABLES[table], stored), row))
    set_schema(connection, table, made)
    connection.close()


def set_schema(connection: sqlite3.Connection, table: str, text: str) -> None:
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, table))
    connection.execute("PRAGMA writable_schema=RESET")


def packed(rest: bytes) -> bytes:
    """Bytes of the codec's version 1, with the right checksum."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(rest) + packer.flush()
    return b"\x01" + zlib.crc32(stream).to_bytes(4, "little") + stream


PATH, VISIT, STEP, SAMPLE = "id = 4", "step = 2", "step = 2", "number = 1"
BOMB = packed(b"I" + bytes(16 * MOST_TOKENS))
NO_PARTS = ("0:3 1:0", "0:4 1:-1", "-2:3", "0:2  1:1", "0:2,1:1", f"0:{HUGE}", "0:" + "9" * 5000, "1:1 " * 10**6)
HALVES = {name: packed(b"e" + bytes([low] * 3) + bytes([high] * 3)) for name, low, high in
          (("+500", 0xD0, 0x5F), ("NaN", 0x00, 0x7E), ("-NaN", 0x01, 0xFC), ("+inf", 0x00, 0x7C))}  # fmt: skip

VALUES = [
    *(("paths", PATH, {"slot": value}) for value in (-1, "one", 1.5, None, HUGE, b"\0")),
    *(("paths", PATH, {"step": value}) for value in (-1, "x", None)),
    *(("paths", PATH, {"n_tokens": value}) for value in (-3, "3 tokens", HUGE)),
    *(("paths", PATH, {"finish_reason": value}) for value in ("eos", b"stop", None, 7)),
    *(("paths", PATH, {"score": value}) for value in ("good", None, float("inf"), b"1")),
    *(("paths", PATH, {"reward": value}) for value in (float("-inf"), "\x1b[31m1")),
    *(("paths", PATH, {"prefix_length": value}) for value in (-1, 4, "all")),
    *(("paths", PATH, {"token_ids": value}) for value in ("ids", 4_000_000_000, None, b"", BOMB, encode_token_ids((1, 2)))),
    *(("paths", PATH, {"log_probs": value}) for value in ("none", 7, *HALVES.values())),
    *(("paths", PATH, {"parent_id": value}) for value in (4, 6, 2, 99, 0, -1, "q")),
    *(("paths", PATH, {"parts": value}) for value in (*NO_PARTS, "0:2", "0:2 1:2", None, 3, b"0:3")),
    ("paths", "id = 1", {"parent_id": 6}),
    ("paths", "id = 6", {"question_id": b"\xff\xfe"}),
    *(("visits", VISIT, {"n_rewarded": value}) for value in (5, -1, None)),
    *(("visits", VISIT, {"start_bare": value}) for value in (2, "yes")),
    ("visits", VISIT, {"outcome": b"\x9b31m"}),
    ("visits", VISIT, {"asked": "by magic"}),
    *(("unfinished", SAMPLE, {"parts": value}) for value in (*NO_PARTS, None, b"2:2")),
    *(("unfinished", SAMPLE, {"due": value}) for value in (3, 0, -1, 9, HUGE, "later")),
    *(("unfinished", SAMPLE, {"place": value}) for value in (-1, 1, "first")),
    *(("unfinished", SAMPLE, {"path_id": value}) for value in (1, 99, 0, None)),
    *(("unfinished", SAMPLE, {"number": value}) for value in (2, -1)),
    *(("unfinished", SAMPLE, {"question_id": value}) for value in ("q", b"\xff")),
    *(("unfinished", SAMPLE, {"token_ids": value}) for value in ("ids", None, b"")),
    ("unfinished", SAMPLE, {"asked": "by magic"}),
    ("unfinished", SAMPLE, {"prefix_length": 4}),
    *(("steps", STEP, {"metrics": value}) for value in (DEEP, "[1]", '{"a": NaN}', '{"a": "b"}', '{"a": 1e999}', b"{}", 5)),
    *(("steps", STEP, {"created_at": value}) for value in ("yesterday", "2026-99-99 00:00:00", b"2026", 7, None)),
    *(("steps", STEP, {"consumed": value}) for value in (-1, "all")),
    ("evaluations", "step = 3", {"metrics": '{"pass1": [1]}'}),
    ("questions", "question_id = 'q'", {"text": b"\xff"}),
    ("runs", "key = 'initial_tokens'", {"value": "9" * 5000}),
    ("runs", "key = 'initial_reached'", {"value": "1:-2"}),
]


def name_of(value: object) -> str:
    return value if isinstance(value, str) and value.isidentifier() else repr(value)[:24]


@pytest.mark.parametrize(("table", "where", "values"), VALUES, ids=[name_of(next(iter(v.items()))) for _, _, v in VALUES])
def test_a_forged_value_is_found_by_verify_and_used_by_nothing(refused, file, capfd, table, where, values):
    forge(file, table, where, **values)
    before = contents(file.parent)
    assert main(["cache", "verify", str(file)]) == 1
    said = capfd.readouterr().out
    row = {"paths": "path", "visits": "visit", "steps": "record", "evaluations": "evaluation", "questions": "question"}
    assert (row | {"unfinished": "unfinished sample"}).get(table, "entry") in said and "\x1b" not in said, said
    if table != "runs":
        assert any(what in said for what in (next(iter(values)), "is damaged (", "an impossible pa", "are no group"))
    readers = (["info"], ["stats"], ["history", "q"], ["show", "q"])
    assert all(main(["cache", name, str(file), *rest]) in (0, 1) for name, *rest in readers)
    assert "Traceback" not in capfd.readouterr().err and contents(file.parent) == before
    # Opening checks the checksum of a path's bytes, and only reading decodes them.
    if table == "paths" and values.keys() & {"token_ids", "log_probs"}:
        assert "damaged" in refused("cache", "export", file, file.parent / "paths.jsonl", "--step", 2)
    else:
        assert "damaged" in refused("cache", "prune", file, 1, "--yes")


def test_verify_goes_on_after_a_damage(file, capfd):
    forge(file, "paths", PATH, score="good")
    forge(file, "steps", STEP, created_at="yesterday")
    execute(file, "UPDATE visits SET cut = -1")
    assert main(["cache", "verify", str(file)]) == 1
    said = capfd.readouterr().out
    assert "path 4 of question q (step 2) is damaged (score holds 'good', not a finite number)" in said
    assert "the record of step 2 is damaged (created_at holds 'yesterday', not a time)" in said
    assert said.count("(cut holds -1, not a whole number from 0 to 2147483647)") == 3 and "damaged: 5" in said


def test_an_error_names_the_row_and_the_column(refused, file):
    forge(file, "visits", VISIT, n_samples="\x1b[2Jfour")
    said = refused("cache", "history", file, "q")
    assert "the visit of question q at step 2 is damaged (n_samples holds '\\x1b[2Jfour'" in said


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS"
SCHEMAS = {
    "a table is missing": ["DROP TABLE visits"],
    "the entries are missing": ["DROP TABLE runs"],
    "an endless view": ["DROP TABLE runs", f"CREATE VIEW runs AS {ENDLESS} key, x AS value, 0 AS checksum FROM n"],
    "an endless revision": ["DROP TABLE alembic_version", f"CREATE VIEW alembic_version AS {ENDLESS} version_num FROM n"],
    "a view of a table": ["ALTER TABLE paths RENAME TO p", "CREATE VIEW paths AS SELECT * FROM p"],
    "a trigger": ["CREATE TRIGGER t AFTER INSERT ON steps BEGIN DELETE FROM paths; END"],
    "a virtual table": ["CREATE VIRTUAL TABLE words USING fts5(x)"],
    "a column is missing": ["ALTER TABLE paths DROP COLUMN reward"],
    "a column too many": ["ALTER TABLE paths ADD COLUMN more"],
    "a calculated column": ["ALTER TABLE paths ADD COLUMN more GENERATED ALWAYS AS (zeroblob(900000000))"],
    "no unique index": ["DROP INDEX ix_paths_question_slot_step"],
    "a later version": ["UPDATE alembic_version SET version_num = '\x1b[2J9'"],
    "a version in bytes": ["UPDATE alembic_version SET version_num = x'ff'"],
    "an earlier version": ["UPDATE alembic_version SET version_num = '0003'"],
    "the first version": ["UPDATE alembic_version SET version_num = '0001'"],
    "two versions": ["INSERT INTO alembic_version VALUES ('0002')"],
    "no version": ["DELETE FROM alembic_version"],
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_another_schema_is_refused(refused, file, name):
    execute(file, *SCHEMAS[name])
    for words in (("verify",), ("info",), ("prune", 1, "--yes")):
        refused("cache", words[0], file, *words[1:])
    refused("report", file, "--out", file.parent / "report.html")


def test_stored_options_of_no_version_are_refused():
    with pytest.raises(UsageError, match="of no version"):
        translated({"rpo.cut.rule": '["uniform"]'})


def pipe(file: File) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: File) -> None:
    file.unlink()
    file.mkdir()


FILES = {
    "text": lambda file: file.write_text("no database\n" * 100),
    "nothing": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(8192)),
    "a header": lambda file: file.write_bytes(b"SQLite format 3\0"),
    "half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "a pipe": pipe,
    "a folder": folder,
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_database_is_refused(refused, file, name):
    FILES[name](file)
    for words in (("verify",), ("info",), ("rollback", 1, "--yes")):
        refused("cache", words[0], file, *words[1:])
    refused("report", file, "--out", file.parent / "report.html")


@pytest.mark.parametrize("name", ["a value", "an endless view", "text", "a pipe", "a folder", "half"])
def test_a_training_command_refuses_it(train, tmp_path, sound, name):
    file = tmp_path / "checkpoints" / "rpo_cache.db"
    (tmp_path / "model").mkdir()
    file.parent.mkdir()
    file.write_bytes(sound)
    if name == "a value":
        forge(file, "paths", PATH, score="good")
    elif name in SCHEMAS:
        execute(file, *SCHEMAS[name])
    else:
        FILES[name](file)
    assert str(file) in train()


@pytest.mark.parametrize("damage", ["created_at = 'yesterday'", "created_at = x'07'", "metrics = '{'", "consumed = 'all'"])
@pytest.mark.parametrize("revision", ["0002", "0003"])
def test_a_damaged_cache_of_an_earlier_schema_is_refused_and_stays_as_it_was(refused, file, damage, revision):
    execute(file, *(f"ALTER TABLE visits DROP COLUMN {name}" for name in ("slot", "n_tokens", "asked")))
    execute(file, "DROP TABLE unfinished", "ALTER TABLE paths DROP COLUMN parts")
    execute(file, f"UPDATE alembic_version SET version_num = '{revision}'")
    if revision == "0002":
        execute(file, *(f"ALTER TABLE {table} DROP COLUMN checksum" for table in TABLES if table != "unfinished"))
    execute(file, f"UPDATE steps SET {damage} WHERE step = 2")
    assert "the record of step 2 is damaged" in refused("cache", "prune", file, 1, "--yes")


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_admits_no_second_writer(file, tmp_path, link):
    with PathCache.open(f"sqlite:///{file}"):
        link(file, tmp_path / "other.db")
        with pytest.raises(CacheLocked, match=r"in use by process|several names of one file"):
            PathCache.open(f"sqlite:///{tmp_path}/other.db")
    assert not (tmp_path / "other.db.lock").exists()


def test_a_folder_that_is_a_link_admits_no_second_writer(file, tmp_path):
    (tmp_path / "other").symlink_to(file.parent)
    with PathCache.open(f"sqlite:///{tmp_path}/other/rpo_cache.db"), pytest.raises(CacheLocked, match="in use by process"):
        PathCache.open(f"sqlite:///{file}")


def test_a_lock_that_is_a_link_is_not_followed(file, tmp_path):
    """A cache's folder may come from anyone."""
    (tmp_path / "letter").write_text("dear")
    file.with_name("rpo_cache.db.lock").symlink_to(tmp_path / "letter")
    with pytest.raises(CacheUnwritable, match=r"rpo_cache.db.lock beside it is a symbolic link, which is not followed"):
        PathCache.open(f"sqlite:///{file}")
    assert (tmp_path / "letter").read_text() == "dear"


def test_a_printed_command_can_be_pasted_whatever_the_path(refused, tmp_path, sound, monkeypatch):
    file = tmp_path / "my run; touch pwned $(id)" / "rpo_cache.db"
    file.parent.mkdir()
    file.write_bytes(sound)
    forge(file, "paths", PATH, score="good")
    said = refused("cache", "prune", file, 1, "--yes")
    monkeypatch.chdir(tmp_path)
    assert os.system(said.split("`")[1]) == 0
    assert not file.exists() and not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("named", ["../../../etc", "\0", "x" * 5000, "global_step9\n\x1b[2J"])
def test_the_cure_follows_no_forged_name_of_a_checkpoint(refused, file, named):
    (file.parent / "_actor").mkdir()
    (file.parent / "_actor" / "latest").write_text(named)
    forge(file, "paths", PATH, score="good")
    assert "start over" in refused("cache", "prune", file, 1, "--yes")


def test_two_writers_of_one_file_put_a_whole_one_in_place(tmp_path):
    target = tmp_path / "latest"
    with replacing(target) as first:
        first.write_text("one")
        with replacing(target) as second:
            second.write_text("two")
            assert first.read_text() == "one"
        assert target.read_text() == "two"
    assert target.read_text() == "one" and list(tmp_path.iterdir()) == [target]


def test_a_reader_leaves_nothing_behind(file):
    before = contents(file.parent)
    with PathCache.open_to_read(f"sqlite:///{file}") as cache:
        assert cache.latest_step == 3
    assert contents(file.parent) == before


def test_a_score_that_is_no_number_is_not_stored(file):
    with PathCache.open(f"sqlite:///{file}") as cache, pytest.raises(CacheError, match="score nan"):
        path = Path("q", (1,), None, "stop", float("nan"), 0.0, step=4)
        cache.commit_step(StepRecord(4, 0, 4, {}), [CacheDecision(path, Visit("q", 4, 1, 0, 1, 1, 0, "best"))])
