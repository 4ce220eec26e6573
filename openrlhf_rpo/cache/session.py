"""The database behind the path cache: engine, pragmas, lock, integrity check, transactions, copies.

SQLite runs with a write-ahead log and synchronous FULL: a commit is on the disk when it returns. All that is SQLite's
own stands in this file; ``store`` holds for any database.
"""

import contextlib
import os
import pathlib
import shutil
import sqlite3
from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, CacheUnwritable, translated
from openrlhf_rpo.cache.lock import WriterLock
from openrlhf_rpo.cache.migrations import upgrade

_PRAGMAS = ("busy_timeout=2000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")


class Database:
    """An open database of one writer. Made by ``Database.open``."""

    def __init__(self, engine: Engine, where: str, resources: contextlib.ExitStack) -> None:
        self.engine = engine
        self.where = where
        self._resources: contextlib.ExitStack | None = resources

    @classmethod
    def open(cls, url: str) -> "Database":
        """Make the folder, lock, check the integrity, upgrade the schema. Raises ``CacheError`` and its kinds."""
        parsed, file = parse_url(url)
        with contextlib.ExitStack() as resources:
            if file is not None:
                _make_folder(file)
                resources.callback(WriterLock(file).release)
                if file.exists() and not os.access(file, os.W_OK):
                    raise CacheUnwritable(f"Path cache {file} is read-only. Make the file and its folder writable.")
            where = str(file) if file is not None else parsed.render_as_string(hide_password=True)
            engine = make_engine(url)
            resources.callback(engine.dispose)
            with readable_errors(where), engine.begin() as connection:
                if file is not None:
                    check_integrity(connection, where)
                upgrade(connection, where)
            return cls(engine, where, resources.pop_all())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end, or rolls back on any error. Driver errors become ``CacheError``."""
        self._need_open()
        with readable_errors(self.where), Session(self.engine) as session, session.begin():
            yield session

    def copy_to(self, path: str) -> None:
        """A consistent copy at ``path`` as one file, replaced atomically, on the disk on return (SQLite's backup)."""
        self._need_open()
        if self.engine.dialect.name != "sqlite":
            raise CacheError(f"Path cache {self.where}: only SQLite can be copied. Use the server's own backup.")
        target = pathlib.Path(path)
        with _replacing(target) as temporary, readable_errors(str(target)):
            source = self.engine.raw_connection()
            copy = sqlite3.connect(temporary)
            try:
                cast(sqlite3.Connection, source.driver_connection).backup(copy)
                # Without this the copy would need a write-ahead log beside it even to be read.
                copy.execute("PRAGMA journal_mode=DELETE")
            finally:
                copy.close()
                source.close()

    def close(self) -> None:
        """Close the connections and let go of the lock; a second call does nothing."""
        if self._resources is not None:
            self._resources.close()
            self._resources = None

    def _need_open(self) -> None:
        if self._resources is None:
            raise CacheError(f"Path cache {self.where} was closed.")


def parse_url(url: str) -> tuple[URL, pathlib.Path | None]:
    """The URL, and its file when it is SQLite's. Raises ``CacheError`` on no URL and on a database in memory."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise CacheError(f"--rpo.cache.url {url!r} is no SQLAlchemy URL such as sqlite:///cache.db.") from error
    if parsed.get_backend_name() != "sqlite":
        return parsed, None
    if parsed.database in (None, "", ":memory:"):
        raise CacheError(f"--rpo.cache.url {url} names no file: a cache in memory is lost with its process.")
    return parsed, pathlib.Path(parsed.database)


def make_engine(url: str) -> Engine:
    """An engine with the pragmas above, where every transaction (schema changes too) is one on SQLite as well."""
    parsed, file = parse_url(url)
    engine = create_engine(parsed)
    if file is not None:

        @event.listens_for(engine, "connect")
        def set_pragmas(connection: Any, _record: Any) -> None:
            # The driver would begin transactions by itself, and never before a schema change; we begin them below.
            connection.isolation_level = None
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN")

    return engine


@contextlib.contextmanager
def readable_errors(where: str) -> Iterator[None]:
    """Turn a driver's error into the ``CacheError`` that names the database, the cause and what to do."""
    try:
        yield
    except DBAPIError as error:
        raise translated(error, where) from error
    except sqlite3.Error as error:
        raise translated(DBAPIError(None, None, error), where) from error


def check_integrity(connection: Connection, where: str) -> None:
    """Raises ``CacheCorrupt`` when SQLite finds a damaged page. Reads the whole file once."""
    finding = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if finding != "ok":
        raise CacheCorrupt(
            f"Path cache {where} is damaged ({finding}). "
            "Put the copy beside a checkpoint in its place, or remove the file and start anew."
        )


def restore_database(copy_path: str, url: str) -> None:
    """Put a checked copy in the place of a missing SQLite database, atomically. Raises ``CacheError``."""
    _, file = parse_url(url)
    if file is None:
        raise CacheError(f"Only SQLite caches can be restored from {copy_path}. Use the server's own backup.")
    if not os.path.isfile(copy_path):
        raise CacheError(f"There is no copy of a path cache at {copy_path}.")
    _make_folder(file)
    lock = WriterLock(file)
    try:
        if file.exists():
            raise CacheError(f"Path cache {file} exists; remove it first if {copy_path} is to take its place.")
        with _replacing(file) as temporary:
            shutil.copyfile(copy_path, temporary)
            engine = create_engine(URL.create("sqlite", database=str(temporary)))
            with readable_errors(copy_path), engine.connect() as connection:
                check_integrity(connection, copy_path)
            engine.dispose()
            # A log left behind by the missing database would be replayed into this one.
            for suffix in ("-wal", "-shm", "-journal"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)
    finally:
        lock.release()


@contextlib.contextmanager
def _replacing(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary file beside ``target`` that takes its place, synced to the disk, when the block succeeds."""
    temporary = target.with_name(target.name + ".tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
        _sync(target.parent)
    except OSError as error:
        raise CacheUnwritable(f"Cannot write the path cache copy {target} ({error.strerror}).") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _make_folder(file: pathlib.Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheUnwritable(
            f"Path cache {file}: its folder cannot be made ({error.strerror}). Use another --ckpt.path or --rpo.cache.url."
        ) from error


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
