"""Checks a whole cache for damage once, when it is opened.

A large file is read in a thread while models load; no step is committed before the end (docs/cache.md). PostgreSQL checks
its own files (``initdb --data-checksums``). On both, every row is also checked when it is read.
"""

import contextlib
import pathlib
import sqlite3
import threading
from typing import cast

from sqlalchemy.orm import Session

from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, cure_of, readable_errors
from openrlhf_rpo.cache.migrations import schema_state, upgrade
from openrlhf_rpo.cache.session import make_engine, place
from openrlhf_rpo.cache.sqlite import check_length, memory_copy, structure_damages
from openrlhf_rpo.cache.upkeep import Progress, bad_values, damages

AT_ONCE = 16 * 2**20
"""Opening waits for files up to this many bytes: about 0.1 seconds on an idle machine."""


class _Closed(Exception):
    pass


class Inspection:
    """Reads the database at ``url`` in a thread; changes nothing on the disk. If the file is small, needs an upgrade, or is
    a copy, waits and may raise ``CacheCorrupt``: nobody may read it while the writer turns on its log.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._where, file = place(url)
        self._found: CacheError | None = None
        self._closing = threading.Event()
        self._connection: sqlite3.Connection | None = None
        self._done, self._total = 0, 1
        self._is_current = self._has_log = True
        self._thread = threading.Thread(target=self._run, name="inspection of the path cache", daemon=True)
        if file is None or not file.exists() or self._is_empty(file):
            return
        parts = (file, file.with_name(file.name + "-wal"))
        self._small = sum(part.stat().st_size for part in parts if part.exists()) <= AT_ONCE
        self._thread.start()
        if self._small or not (self._is_current and self._has_log):
            self.wait()

    def need_sound(self) -> None:
        """Raise what has been found so far."""
        if self._found is not None:
            raise self._found

    def wait(self, progress: Progress | None = None) -> None:
        """Wait until everything is read, then raise what was found."""
        while self._thread.is_alive():
            self._thread.join(0.2 if progress else None)
            if progress:
                progress(self._done, self._total)
        if progress:
            progress(self._done, self._total)
        self.need_sound()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        if self._thread.is_alive():
            connection = self._connection  # which the thread may be closing
            if connection is not None:
                with contextlib.suppress(sqlite3.ProgrammingError):
                    connection.interrupt()
            self._thread.join()

    def _run(self) -> None:
        found: CacheError | None
        try:
            found = self._inspect()
        except CacheError as error:
            found = error
        except Exception as error:  # an unfinished inspection must not pass
            found = CacheError(f"Path cache {self._where} could not be read completely ({error!r}).")
        if not self._closing.is_set():
            self._found = found

    def _is_empty(self, file: pathlib.Path) -> bool:
        """Whether the file has no tables. Raises what opening it for reading would."""
        check_length(file)
        engine = make_engine(self._url, read_only=True)
        try:
            with readable_errors(self._where), engine.connect() as connection:
                state = schema_state(connection, self._where)
                self._is_current = state == "current"
                self._has_log = connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
                return state == "none"
        finally:
            engine.dispose()

    def _inspect(self) -> CacheCorrupt | None:
        engine = make_engine(self._url, read_only=True)
        try:
            findings: list[str] = []
            with contextlib.suppress(_Closed), readable_errors(self._where), Session(engine) as session, session.begin():
                connection = session.connection()
                self._connection = cast(sqlite3.Connection, connection.connection.driver_connection)
                of_rows = damages(session, self._progress, decode=False) if self._is_current else bad_values(session)
                findings = structure_damages(connection) or list(of_rows)
                if not findings and not self._is_current and self._small:
                    self._try_upgrade(self._connection)
        finally:
            self._connection = None
            engine.dispose()
        if not findings:
            return None
        more = f", and {len(findings) - 1} more (openrlhf-rpo cache verify)" if len(findings) > 1 else ""
        return CacheCorrupt(f"Path cache {self._where} is damaged: {findings[0]}{more}. {cure_of(self._where)}")

    def _try_upgrade(self, connection: sqlite3.Connection) -> None:
        """Upgrade a copy in memory, so only of a small file. Raises for tables that do not match their revision."""
        engine = memory_copy(connection)
        try:
            with engine.begin() as copy:
                upgrade(copy, self._where)
        finally:
            engine.dispose()

    def _progress(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._closing.is_set():
            raise _Closed
