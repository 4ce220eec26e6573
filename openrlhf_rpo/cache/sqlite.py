"""SQLite: engine, pragmas, integrity, copies.

With a write-ahead log and synchronous FULL, a commit is on disk when it returns.
"""

import contextlib
import os
import pathlib
import shutil
import sqlite3
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, MetaData, StaticPool, create_engine, event

from openrlhf_rpo import durable
from openrlhf_rpo.cache.columns import shown
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheUnwritable, beside_checkpoint, cure_of, readable_errors

_PRAGMAS = ("busy_timeout=2000", "trusted_schema=OFF", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")
_READER_PRAGMAS = ("busy_timeout=2000", "trusted_schema=OFF", "query_only=ON")
_LARGEST_VALUE = 2**26
"""The most bytes of a text or blob, twice a path of ``codec.MOST_TOKENS``: a small file can claim gigabytes."""
_FOREIGN = "No run of this package writes that: use the copy beside a checkpoint, or start over"
_SIDE_FILES = ("-wal", "-shm", "-journal")  # what SQLite creates beside a database


def sqlite_engine(file: pathlib.Path, read_only: bool = False) -> Engine:
    """An engine with the pragmas above, whose transactions include schema changes.

    Raises ``CacheUnwritable`` for what is no file.
    """
    if file.exists() and not file.is_file():  # opening a pipe would wait for its other end
        raise CacheUnwritable(
            f"Path cache {file}: unable to open database file, because it is none (a folder, pipe or device). Remove it, or "
            "use another --ckpt.path or --rpo.cache.url."
        )
    engine = create_engine(_read_only_url(file) if read_only else URL.create("sqlite", database=str(file)))

    @event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: Any) -> None:
        # The driver would start no transaction before schema changes, so ``begin`` below starts them all.
        connection.isolation_level = None
        connection.text_factory = _text
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
        for pragma in _READER_PRAGMAS if read_only else _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _text(data: bytes) -> str | bytes:
    """A text as the driver returns it. Invalid UTF-8 stays bytes, for the column's type to refuse."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _read_only_url(file: pathlib.Path) -> URL:
    """A reader's URL. Without a log, its mode leaves no empty one behind; ``query_only`` prevents writing.

    Immutable, which needs no locks, when it is a checkpoint's copy, or the folder is read-only: a reader could not create
    the log's index there.
    """
    query = {"mode": "ro", "uri": "true"}
    if not any(file.with_name(file.name + suffix).exists() for suffix in _SIDE_FILES):
        if os.access(file.parent, os.W_OK) and not beside_checkpoint(file):
            query["mode"] = "rw"
        else:
            query["immutable"] = "1"
    return URL.create("sqlite", database=_uri(file), query=query)


def _uri(file: pathlib.Path) -> str:
    return f"file:{urllib.parse.quote_from_bytes(os.fsencode(file.absolute()))}"


def make_folder(file: pathlib.Path) -> None:
    """Create the folder of ``file``. Raises ``CacheUnwritable``."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheUnwritable(
            f"Path cache {file}: its folder cannot be made ({error.strerror}). Use another --ckpt.path or --rpo.cache.url."
        ) from error


def check_writable(file: pathlib.Path) -> None:
    """Raise ``CacheUnwritable`` if the file exists and is read-only."""
    if file.exists() and not os.access(file, os.W_OK):
        raise CacheUnwritable(f"Path cache {file} is read-only. Make the file and its folder writable.")


def check_length(file: pathlib.Path) -> None:
    """Raise ``CacheCorrupt`` if the file is shorter than its header says; reads only the header.

    Call only before this process connects to the file: closing it would end SQLite's own locks, and another program
    that closes the database would then remove the log from under the writer (sqlite.org/howtocorrupt.html, section 2.2).
    """
    if not file.is_file() or file.stat().st_size == 0:
        return
    log = file.with_name(file.name + "-wal")
    if log.exists() and log.stat().st_size:
        return  # pages may still be in the log
    with file.open("rb") as opened:
        header = opened.read(100)
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100 or header[24:28] != header[92:96]:
        return  # no valid page count: left to SQLite
    page_bytes = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    if file.stat().st_size < expected:
        raise CacheCorrupt(
            f"Path cache {file} was cut short: it has {file.stat().st_size:,} of {expected:,} bytes. {cure_of(str(file))}"
        )


def check_objects(connection: Connection, where: str) -> None:
    """Raise ``CacheCorrupt`` for views, triggers and virtual tables, which can run forever or answer at will."""
    for kind, name, page in connection.exec_driver_sql("SELECT type, name, rootpage FROM sqlite_master"):
        if kind in ("view", "trigger") or not page:
            raise CacheCorrupt(f"Path cache {where} has the {shown(kind)} {shown(name)}, and a cache has none. {_FOREIGN}")


def check_tables(connection: Connection, where: str, metadata: MetaData) -> None:
    """Raise ``CacheCorrupt`` unless every table has the columns, key and unique indices of ``metadata``."""
    for table in metadata.sorted_tables:
        stored = {row[1]: (*row[2:4], row[5], row[6]) for row in _pragma(connection, "table_xinfo", table.name)}
        for column in table.columns:
            place = list(table.primary_key.columns).index(column) + 1 if column.primary_key else 0
            wanted = column.type.compile(connection.dialect), int(not column.nullable), place, 0
            if stored.pop(column.name, None) != wanted:
                what = f"column {column.name} of table {table.name}"
                raise CacheCorrupt(f"Path cache {where}: {what} is missing or of another kind. {_FOREIGN}")
        unique = {tuple(index.columns.keys()) for index in table.indexes if index.unique}
        for _, name, is_unique, _, is_partial, *_ in _pragma(connection, "index_list", table.name):
            if is_unique and not is_partial:
                unique.discard(tuple(row[2] for row in _pragma(connection, "index_info", name)))
        if stored or unique:
            what = f"column {shown(next(iter(stored)))} too many" if stored else f"no unique index of {unique.pop()}"
            raise CacheCorrupt(f"Path cache {where}: table {table.name} has {what}. {_FOREIGN}")


def _pragma(connection: Connection, name: str, argument: str) -> Sequence[Any]:
    quoted = argument.replace('"', '""')
    return connection.exec_driver_sql(f'PRAGMA {name}("{quoted}")').all()


def structure_damages(connection: Connection) -> list[str]:
    """The problems that SQLite finds in pages, records and indices. Reads the whole file once."""
    findings = connection.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
    return [] if findings == ["ok"] else [str(finding) for finding in findings]


def backup(source: Connection, target: pathlib.Path) -> None:
    """Write what the transaction of ``source`` reads to ``target``: one file, atomically and synced to disk."""
    with replacing(target) as temporary, readable_errors(str(target)):
        with _private(temporary) as copy:
            cast(sqlite3.Connection, source.connection.driver_connection).backup(copy)
        make_one_file(temporary)


def memory_copy(connection: sqlite3.Connection) -> Engine:
    """An engine for a copy of the database in memory."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    copy.text_factory = _text
    connection.backup(copy)
    return create_engine("sqlite://", creator=lambda: copy, poolclass=StaticPool)


@contextlib.contextmanager
def private_engine(file: pathlib.Path) -> Iterator[Engine]:
    """An engine for a new file that nobody else knows, in one connection; its transactions include schema changes."""
    with _private(file) as connection:
        connection.isolation_level = None
        engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        event.listen(engine, "begin", lambda begun: begun.exec_driver_sql("BEGIN"))
        yield engine


def make_one_file(file: pathlib.Path) -> None:
    """Turn off the write-ahead log; otherwise even reading the copy would create one beside it."""
    with _private(file) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


@contextlib.contextmanager
def _private(file: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """A connection to a file that nobody else knows, without locks: checkpoints may lie where there are none."""
    with contextlib.closing(sqlite3.connect(f"{_uri(file)}?vfs=unix-none", uri=True)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # without locks there is no log that others could read
        yield connection


def size(connection: Connection) -> int:
    """Bytes of the pages in use."""
    pages, free, width = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * width


def vacuum(engine: Engine) -> None:
    """Rewrite the file without the pages of removed rows."""
    with contextlib.closing(engine.raw_connection()) as connection:
        driver = cast(sqlite3.Connection, connection.driver_connection)
        driver.executescript("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)")


def put_back(copy: pathlib.Path, file: pathlib.Path) -> None:
    """Put a copy in the place of the missing ``file``, atomically."""
    with replacing(file) as temporary:
        shutil.copyfile(copy, temporary)
        # A log left by the missing database would be replayed into this one.
        for suffix in _SIDE_FILES:
            file.with_name(file.name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """``durable.replacing`` for a database. Raises ``CacheUnwritable``."""
    try:
        with durable.replacing(target) as temporary:
            try:
                yield temporary
            finally:
                for suffix in _SIDE_FILES:
                    with contextlib.suppress(OSError):
                        temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise CacheUnwritable(f"Cannot write the path cache copy {target} ({error.strerror}).") from error
