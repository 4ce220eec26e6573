"""Every byte of a cache is looked at once when it is opened.

What a resumed run could read is all of the file: nothing less finds a flipped byte. A small file is read before opening
returns. A larger one is read in a thread, while models load: damage is raised by the first call after it was found, and
no step is committed before the end. In between nothing damaged is used either, since every row that is read is checked.

PostgreSQL checks its own files (``initdb --data-checksums``); there rows are checked when they are read.
"""

import contextlib
import sqlite3
import threading
from typing import cast

from sqlalchemy.orm import Session

from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, cure_of, readable_errors
from openrlhf_rpo.cache.session import make_engine, place
from openrlhf_rpo.cache.sqlite import structure_damages
from openrlhf_rpo.cache.upkeep import Progress, damages

AT_ONCE = 16 * 2**20
"""Bytes up to which opening waits: about a tenth of a second on an idle machine."""


class _Closed(Exception):
    pass


class Inspection:
    """Reads the database at ``url``, in a thread when it is large. Raises ``CacheCorrupt`` at once when it is small."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._where, file = place(url)
        self._found: CacheError | None = None
        self._closing = threading.Event()
        self._connection: sqlite3.Connection | None = None
        self._done, self._total = 0, 1
        self._thread = threading.Thread(target=self._run, name="inspection of the path cache", daemon=True)
        if file is None:
            return
        log = file.with_name(file.name + "-wal")
        self._thread.start()
        if sum(part.stat().st_size for part in (file, log) if part.exists()) <= AT_ONCE:
            self.wait()

    def need_sound(self) -> None:
        """Raises what was found so far."""
        if self._found is not None:
            raise self._found

    def wait(self, progress: Progress | None = None) -> None:
        """Until all was read. Raises what was found."""
        while self._thread.is_alive():
            self._thread.join(0.2 if progress else None)
            if progress:
                progress(self._done, self._total)
        self.need_sound()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        if self._thread.is_alive():
            if self._connection is not None:
                self._connection.interrupt()
            self._thread.join()

    def _run(self) -> None:
        found: CacheError | None
        try:
            found = self._inspect()
        except CacheError as error:
            found = error
        except Exception as error:  # of whatever kind: what was not read to its end is not sound
            found = CacheError(f"Path cache {self._where} could not be read to its end ({error!r}).")
        if not self._closing.is_set():
            self._found = found

    def _inspect(self) -> CacheCorrupt | None:
        engine = make_engine(self._url, read_only=True)
        try:
            findings: list[str] = []
            with contextlib.suppress(_Closed), readable_errors(self._where), Session(engine) as session, session.begin():
                connection = session.connection()
                self._connection = cast(sqlite3.Connection, connection.connection.driver_connection)
                findings = structure_damages(connection) or damages(session, self._progress, decode=False)
        finally:
            self._connection = None
            engine.dispose()
        if not findings:
            return None
        more = f", and {len(findings) - 1} more (openrlhf-rpo cache verify)" if len(findings) > 1 else ""
        return CacheCorrupt(f"Path cache {self._where} is damaged: {findings[0]}{more}. {cure_of(self._where)}")

    def _progress(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._closing.is_set():
            raise _Closed
