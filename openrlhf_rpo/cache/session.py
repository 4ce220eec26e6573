"""The database of the path cache: opening, writer's lock, transactions, copies; for SQLite and PostgreSQL."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from sqlalchemy import URL, Connection, Engine, func, insert, inspect, literal, make_url, select
from sqlalchemy.orm import Session

from openrlhf_rpo.cache import sqlite
from openrlhf_rpo.cache.errors import CacheError, readable_errors
from openrlhf_rpo.cache.lock import WriterLock
from openrlhf_rpo.cache.migrations import check_revision, schema_state, upgrade
from openrlhf_rpo.cache.models import Base
from openrlhf_rpo.cache.postgres import AdvisoryLock, postgres_engine
from openrlhf_rpo.credentials import is_plain_postgres

SQLITE = "sqlite:///"


class Snapshot:
    """A database as it was at one moment. Holds a transaction until ``copy_to`` returns or its ``with`` block ends."""

    def __init__(self, engine: Engine, where: str) -> None:
        self.where = where
        with readable_errors(where):
            self._connection = engine.connect()
            self._connection.execute(select(literal(1)).select_from(Base.metadata.tables["runs"]).limit(1))  # it begins here

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()

    def copy_to(self, path: str) -> None:
        """Write it at ``path`` as one SQLite file, atomically and synced to disk; once. Raises ``CacheError``."""
        target = pathlib.Path(path)
        if self._connection.dialect.name == "sqlite":
            with self:
                sqlite.backup(self._connection, target)
            return
        with (
            self,
            sqlite.replacing(target) as temporary,
            readable_errors(str(target)),
            sqlite.private_engine(temporary) as copy,
            copy.begin() as connection,
        ):
            upgrade(connection, str(target))
            _copy_rows(self._connection, self.where, connection, str(target))


class Database:
    """An open database, for its one writer or any of its readers."""

    def __init__(
        self, engine: Engine, where: str, resources: contextlib.ExitStack, read_only: bool, lock: AdvisoryLock | None = None
    ) -> None:
        """Called by ``open`` and ``open_to_read``. ``lock``: the writer's in PostgreSQL; the server may end it."""
        self.engine = engine
        self.where = where
        self.read_only = read_only
        self._resources: contextlib.ExitStack | None = resources
        self._lock = lock

    @classmethod
    def open(cls, url: str) -> "Database":
        """Create the folder, lock, upgrade the schema. Raises ``CacheError`` or a subclass."""
        where, file = place(url)
        with contextlib.ExitStack() as resources, readable_errors(where):
            if file is not None:
                sqlite.make_folder(file)
                resources.callback(WriterLock(file).release)
                sqlite.check_writable(file)
            engine = make_engine(url)
            resources.callback(engine.dispose)
            lock = AdvisoryLock(engine, where) if file is None else None
            if lock is not None:
                resources.callback(lock.release)
            with engine.begin() as connection:
                upgrade(connection, where)
                if lock is not None:
                    lock.need_held()  # beside a transaction, for which a transaction pooler uses the lock's connection
            return cls(engine, where, resources.pop_all(), read_only=False, lock=lock)

    @classmethod
    def open_to_read(cls, url: str) -> "Database":
        """Open read-only, without the writer's lock. Raises ``CacheError`` or a subclass."""
        where, file = place(url)
        if file is not None and not file.exists():
            raise CacheError(f"There is no path cache at {file}.")
        with contextlib.ExitStack() as resources, readable_errors(where):
            engine = make_engine(url, read_only=True)
            resources.callback(engine.dispose)
            with engine.connect() as connection:
                check_revision(connection, where)
            return cls(engine, where, resources.pop_all(), read_only=True)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end and rolls back on any error. Driver errors become ``CacheError``."""
        self._need_open()
        with readable_errors(self.where), Session(self.engine) as session, session.begin():
            if self._lock is not None:
                self._lock.need_held()
            yield session

    def snapshot(self) -> "Snapshot":
        """The database as it is now, to be copied by any thread while others write. Raises ``CacheError``."""
        self._need_open()
        return Snapshot(self.engine, self.where)

    def structure_damages(self, session: Session) -> list[str]:
        """The problems that SQLite finds in its file; empty for PostgreSQL, which checks its own."""
        return sqlite.structure_damages(session.connection()) if self.engine.dialect.name == "sqlite" else []

    def size(self, session: Session) -> int:
        """Bytes that the rows take, without the space of removed ones (PostgreSQL: with it)."""
        if self.engine.dialect.name == "sqlite":
            return sqlite.size(session.connection())
        tables = Base.metadata.tables
        return sum(session.scalar(select(func.pg_total_relation_size(name))) or 0 for name in tables)

    def vacuum(self) -> None:
        """Rewrite the database without the space of removed rows."""
        self._need_open()
        with readable_errors(self.where):
            if self.engine.dialect.name == "sqlite":
                sqlite.vacuum(self.engine)
                return
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(f"VACUUM FULL {', '.join(Base.metadata.tables)}")

    def close(self) -> None:
        """Close the connections and release the lock; a second call does nothing."""
        if self._resources is not None:
            self._resources.close()
            self._resources = None

    def _need_open(self) -> None:
        if self._resources is None:
            raise CacheError(f"Path cache {self.where} was closed.")


def parse_url(url: str) -> tuple[URL, pathlib.Path | None]:
    """The URL, and its file if it is SQLite's. Raises ``CacheError`` for others, without quoting them."""
    if url.startswith(SQLITE):
        name = url.removeprefix(SQLITE)
        if name in ("", ":memory:"):
            raise CacheError(f"--rpo.cache.url {url} names no file: a cache in memory is lost with its process.")
        # The real file: a link's name would get another lock.
        return URL.create("sqlite", database=name), pathlib.Path(os.path.realpath(name))
    if is_plain_postgres(url):
        return make_url(url), None
    raise CacheError(
        "--rpo.cache.url: expected sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE, with the password in "
        "~/.pgpass or PGPASSWORD (docs/cache.md, PostgreSQL)."
    )


def place(url: str) -> tuple[str, pathlib.Path | None]:
    """The database's name in messages, and its file if it is SQLite's. A URL holds no password: ``parse_url``."""
    _, file = parse_url(url)
    return (str(file) if file is not None else url), file


def make_engine(url: str, read_only: bool = False) -> Engine:
    """An engine for SQLite or PostgreSQL. Raises ``CacheError`` for any other URL."""
    parsed, file = parse_url(url)
    return postgres_engine(parsed, read_only) if file is None else sqlite.sqlite_engine(file, read_only)


@contextlib.contextmanager
def writer_lock(url: str) -> Iterator[None]:
    """Hold the writer's lock without opening the cache. Raises ``CacheLocked``."""
    where, file = place(url)
    if file is not None:
        lock: WriterLock | AdvisoryLock = WriterLock(file)
    else:
        lock = AdvisoryLock(make_engine(url), where)
    try:
        yield
    finally:
        lock.release()


def is_missing(url: str) -> bool:
    """Whether there is no cache: no file, or a database without tables."""
    where, file = place(url)
    if file is not None:
        return not file.exists()
    engine = make_engine(url, read_only=True)
    try:
        with readable_errors(where), engine.connect() as connection:
            return not inspect(connection).get_table_names()
    finally:
        engine.dispose()


def restore_database(copy_path: str, url: str) -> None:
    """Restore a missing database from a copy made by ``copy_to``, atomically. Raises ``CacheError``."""
    where, file = place(url)
    copy = pathlib.Path(copy_path)
    if not copy.is_file():
        raise CacheError(f"There is no copy of a path cache at {copy_path}.")
    if file is not None:
        sqlite.make_folder(file)
    with readable_errors(where), writer_lock(url):
        if not is_missing(url):
            raise CacheError(f"Path cache {where} exists; remove it before restoring {copy_path}.")
        if file is not None:
            sqlite.put_back(copy, file)
            return
        target = make_engine(url)
        try:
            with _of_this_version(copy) as source, source.connect() as rows, target.begin() as connection:
                upgrade(connection, where)
                _copy_rows(rows, copy_path, connection, where)
        finally:
            target.dispose()


@contextlib.contextmanager
def _of_this_version(copy: pathlib.Path) -> Iterator[Engine]:
    """An engine that reads a copy, upgraded in a temporary file if it is older."""
    with readable_errors(str(copy)), tempfile.TemporaryDirectory() as folder:
        source = sqlite.sqlite_engine(copy, read_only=True)
        with source.connect() as rows:
            is_older = schema_state(rows, str(copy)) == "older"
        try:
            if is_older:
                source.dispose()
                made = pathlib.Path(folder, copy.name)
                sqlite.put_back(copy, made)
                source = sqlite.sqlite_engine(made)
                with source.begin() as rows:
                    upgrade(rows, str(copy))
            with source.connect() as rows:
                check_revision(rows, str(copy))
            yield source
        finally:
            source.dispose()


def _copy_rows(source: Connection, where: str, target: Connection, to: str) -> None:
    """Fill the empty tables of ``target`` in batches. Both databases have this version's schema; checksums are copied.

    ``where`` and ``to`` name them in messages.
    """
    for table in Base.metadata.sorted_tables:
        query = select(table).order_by(*table.primary_key.columns)  # parents have smaller ids than their children
        with readable_errors(where), source.execution_options(yield_per=200).execute(query) as rows:
            for batch in rows.mappings().partitions():
                with readable_errors(to):
                    target.execute(insert(table), [dict(row) for row in batch])
