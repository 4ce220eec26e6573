"""All that is SQLite's own: engine, pragmas, integrity, copies.

It runs with a write-ahead log and synchronous FULL: a commit is on the disk when it returns.
"""

import contextlib
import os
import pathlib
import shutil
import sqlite3
import urllib.parse
from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event

from openrlhf_rpo import durable
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheUnwritable, cure_of, readable_errors

_PRAGMAS = ("busy_timeout=2000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
_READER_PRAGMAS = ("busy_timeout=2000", "query_only=ON")


def sqlite_engine(file: pathlib.Path, read_only: bool = False) -> Engine:
    """An engine with the pragmas above, where every transaction (schema changes too) is one."""
    engine = create_engine(_read_only_url(file) if read_only else URL.create("sqlite", database=str(file)))

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: Any) -> None:
        # The driver would begin transactions by itself, and never before a schema change; we begin them below.
        connection.isolation_level = None
        for pragma in _READER_PRAGMAS if read_only else _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _read_only_url(file: pathlib.Path) -> URL:
    """Of the writer's log a reader sees what is committed. Where it may not make the log's index, there is no writer."""
    query = {"mode": "ro", "uri": "true"}
    if not os.access(file.parent, os.W_OK) and not file.with_name(file.name + "-wal").exists():
        query["immutable"] = "1"
    return URL.create("sqlite", database=f"file:{urllib.parse.quote(str(file.absolute()))}", query=query)


def make_folder(file: pathlib.Path) -> None:
    """Make the folder of ``file``. Raises ``CacheUnwritable``."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheUnwritable(
            f"Path cache {file}: its folder cannot be made ({error.strerror}). Use another --ckpt.path or --rpo.cache.url."
        ) from error


def check_writable(file: pathlib.Path) -> None:
    """Raises ``CacheUnwritable`` when the file is there and is read-only."""
    if file.exists() and not os.access(file, os.W_OK):
        raise CacheUnwritable(f"Path cache {file} is read-only. Make the file and its folder writable.")


def check_length(file: pathlib.Path) -> None:
    """Raises ``CacheCorrupt`` when the file is shorter than its header says; takes no time at any size."""
    if not file.is_file() or file.stat().st_size == 0:
        return
    log = file.with_name(file.name + "-wal")
    if log.exists() and log.stat().st_size:
        return  # pages may still be in the log
    with file.open("rb") as opened:
        header = opened.read(100)
    if len(header) < 100 or header[24:28] != header[92:96]:
        return  # no header, or one without a valid page count: SQLite judges that itself
    page_bytes = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    if file.stat().st_size < expected:
        raise CacheCorrupt(
            f"Path cache {file} was cut short: it has {file.stat().st_size:,} of {expected:,} bytes. {cure_of(str(file))}"
        )


def structure_damages(connection: Connection) -> list[str]:
    """What SQLite finds wrong with pages, records and indices. Reads the whole file once."""
    findings = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
    return [] if findings == ["ok"] else [str(finding) for finding in findings]


def backup(engine: Engine, target: pathlib.Path) -> None:
    """A consistent copy at ``target`` as one file, replaced atomically, on the disk on return."""
    with replacing(target) as temporary, readable_errors(str(target)):
        source = engine.raw_connection()
        copy = sqlite3.connect(temporary)
        try:
            cast(sqlite3.Connection, source.driver_connection).backup(copy)
        finally:
            copy.close()
            source.close()
        make_one_file(temporary)


def make_one_file(file: pathlib.Path) -> None:
    """Without this a copy would need a write-ahead log beside it even to be read."""
    connection = sqlite3.connect(file)
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()


def vacuum(engine: Engine) -> None:
    """Rewrite the file without the pages of removed rows."""
    connection = engine.raw_connection()
    try:
        driver = cast(sqlite3.Connection, connection.driver_connection)
        driver.executescript("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def put_back(copy: pathlib.Path, file: pathlib.Path) -> None:
    """A checked copy takes the place of the missing ``file``, atomically."""
    with replacing(file) as temporary:
        shutil.copyfile(copy, temporary)
        check_length(copy)
        engine = sqlite_engine(temporary, read_only=True)
        with readable_errors(str(copy)), engine.connect() as connection:
            findings = structure_damages(connection)
        engine.dispose()
        if findings:
            raise CacheCorrupt(f"The copy {copy} is damaged ({findings[0]}). Use the copy beside another checkpoint.")
        # A log left behind by the missing database would be replayed into this one.
        for suffix in ("-wal", "-shm", "-journal"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """``durable.replacing`` for a database. Raises ``CacheUnwritable``."""
    with contextlib.ExitStack() as leftovers:
        try:
            with durable.replacing(target) as temporary:
                for suffix in ("-wal", "-shm", "-journal"):  # what SQLite makes beside it
                    leftovers.callback(_remove, temporary.with_name(temporary.name + suffix))
                yield temporary
        except OSError as error:
            raise CacheUnwritable(f"Cannot write the path cache copy {target} ({error.strerror}).") from error


def _remove(file: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
