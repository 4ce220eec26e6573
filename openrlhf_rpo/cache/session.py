"""The database behind the path cache: opening, one writer, transactions, copies. ``store`` holds for any database."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

from sqlalchemy import URL, Engine, inspect, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from openrlhf_rpo.cache import sqlite
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, cure_of, readable_errors
from openrlhf_rpo.cache.lock import WriterLock
from openrlhf_rpo.cache.migrations import check_revision, is_current, upgrade
from openrlhf_rpo.cache.postgres import AdvisoryLock, postgres_engine
from openrlhf_rpo.cache.transfer import copy_rows


class Database:
    """An open database: one writer, or any number of readers beside it."""

    def __init__(
        self, engine: Engine, where: str, resources: contextlib.ExitStack, need_held: Callable[[], None] | None
    ) -> None:
        """Made by ``open`` and ``open_to_read``; ``need_held`` raises when the writer's lock was lost (None: a reader)."""
        self.engine = engine
        self.where = where
        self._resources: contextlib.ExitStack | None = resources
        self.read_only = need_held is None
        self._need_held = need_held or _always

    @classmethod
    def open(cls, url: str) -> "Database":
        """Make the folder, lock, upgrade the schema. Raises ``CacheError`` and its kinds."""
        where, file = place(url)
        with contextlib.ExitStack() as resources, readable_errors(where):
            if file is not None:
                sqlite.make_folder(file)
                resources.callback(WriterLock(file).release)
                sqlite.check_writable(file)
                sqlite.check_length(file)
            engine = make_engine(url)
            resources.callback(engine.dispose)
            need_held: Callable[[], None] = _always
            if file is None:
                lock = AdvisoryLock(engine, where)
                resources.callback(lock.release)
                need_held = lock.need_held
            with engine.begin() as connection:
                if not is_current(connection, where):
                    # Checksums must not be given to damaged rows.
                    if file is not None and (findings := sqlite.structure_damages(connection)):
                        raise CacheCorrupt(f"Path cache {where} is damaged ({findings[0]}). {cure_of(where)}")
                    upgrade(connection, where)
            return cls(engine, where, resources.pop_all(), need_held)

    @classmethod
    def open_to_read(cls, url: str) -> "Database":
        """Open without the writer's lock and without changing anything. Raises ``CacheError`` and its kinds."""
        where, file = place(url)
        if file is not None and not file.exists():
            raise CacheError(f"There is no path cache at {file}.")
        with contextlib.ExitStack() as resources, readable_errors(where):
            engine = make_engine(url, read_only=True)
            resources.callback(engine.dispose)
            with engine.connect() as connection:
                check_revision(connection, where)
            return cls(engine, where, resources.pop_all(), None)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end, or rolls back on any error. Driver errors become ``CacheError``."""
        self._need_open()
        with readable_errors(self.where), Session(self.engine) as session, session.begin():
            self._need_held()
            yield session

    def copy_to(self, path: str) -> None:
        """A consistent copy at ``path`` as one SQLite file, replaced atomically, on the disk on return."""
        self._need_open()
        target = pathlib.Path(path)
        if self.engine.dialect.name == "sqlite":
            sqlite.backup(self.engine, target)
            return
        with sqlite.replacing(target) as temporary:
            copy = sqlite.sqlite_engine(temporary)
            try:
                with readable_errors(str(target)), copy.begin() as connection:
                    upgrade(connection, str(target))
                    with readable_errors(self.where), self.engine.connect() as source:
                        copy_rows(source, connection)
            finally:
                copy.dispose()
            sqlite.make_one_file(temporary)

    def structure_damages(self, session: Session) -> list[str]:
        """What the database itself finds wrong with its files; PostgreSQL looks after its own."""
        return sqlite.structure_damages(session.connection()) if self.engine.dialect.name == "sqlite" else []

    def vacuum(self) -> None:
        """Rewrite the database without the holes that removed rows left."""
        self._need_open()
        with readable_errors(self.where):
            if self.engine.dialect.name == "sqlite":
                sqlite.vacuum(self.engine)
                return
            with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM FULL")

    @property
    def cure(self) -> str:
        """What to do when it is damaged."""
        return cure_of(self.where)

    def close(self) -> None:
        """Close the connections and let go of the lock; a second call does nothing."""
        if self._resources is not None:
            self._resources.close()
            self._resources = None

    def _need_open(self) -> None:
        if self._resources is None:
            raise CacheError(f"Path cache {self.where} was closed.")


def _always() -> None:
    """The lock of SQLite's writer is held as long as its process lives; a reader needs none."""


def parse_url(url: str) -> tuple[URL, pathlib.Path | None]:
    """The URL, and its file when it is SQLite's. Raises ``CacheError`` on no URL and on a database in memory."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise CacheError(f"--rpo.cache.url {url!r} is no SQLAlchemy URL such as sqlite:///cache.db.") from error
    if parsed.drivername == "postgresql+psycopg":
        return parsed, None
    if parsed.get_backend_name() != "sqlite":
        raise CacheError(f"--rpo.cache.url {url!r}: expected sqlite:///PATH or postgresql+psycopg://...")
    if parsed.database in (None, "", ":memory:"):
        raise CacheError(f"--rpo.cache.url {url} names no file: a cache in memory is lost with its process.")
    return parsed, pathlib.Path(parsed.database)


def place(url: str) -> tuple[str, pathlib.Path | None]:
    """What messages call the database (no password), and its file when it is SQLite's."""
    parsed, file = parse_url(url)
    return (str(file) if file is not None else parsed.render_as_string(hide_password=True)), file


def make_engine(url: str, read_only: bool = False) -> Engine:
    """An engine of either kind. Raises ``CacheError`` on a URL of another one."""
    parsed, file = parse_url(url)
    return postgres_engine(parsed, read_only) if file is None else sqlite.sqlite_engine(file, read_only)


@contextlib.contextmanager
def writer_lock(url: str) -> Iterator[None]:
    """The lock alone, for a change by hand. Raises ``CacheLocked``."""
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
    """Whether there is no cache at all: no file, or a database without tables."""
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
    """Put a checked copy in the place of a missing database, whole or not at all. Raises ``CacheError``."""
    where, file = place(url)
    copy = pathlib.Path(copy_path)
    if not copy.is_file():
        raise CacheError(f"There is no copy of a path cache at {copy_path}.")
    if file is not None:
        sqlite.make_folder(file)
    with readable_errors(where), writer_lock(url):
        if not is_missing(url):
            raise CacheError(f"Path cache {where} exists; remove it first if {copy_path} is to take its place.")
        if file is not None:
            sqlite.put_back(copy, file)
            return
        sqlite.check_length(copy)
        source, target = sqlite.sqlite_engine(copy, read_only=True), make_engine(url)
        try:
            with readable_errors(copy_path), source.connect() as rows, target.begin() as connection:
                check_revision(rows, copy_path)
                upgrade(connection, where)
                copy_rows(rows, connection)
        finally:
            source.dispose()
            target.dispose()
