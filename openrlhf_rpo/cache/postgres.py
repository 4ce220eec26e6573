"""PostgreSQL: engine and writer's lock."""

import contextlib
import os
import socket
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from openrlhf_rpo.cache.errors import CacheError, CacheLocked, CacheUnwritable

_ALIVE = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 6}
"""Seconds, seconds, tries. Networks drop connections that are silent for minutes, as in a long step, and so the lock.

Set on the server, too, which otherwise keeps the lock of a lost node for hours.
"""

# The advisory lock's key, one per schema. The server releases the lock when the connection ends.
_KEY = "hashtext('openrlhf_rpo path cache ' || current_schema())"
_TAKEN = f"locktype = 'advisory' AND granted AND objid::bigint = ({_KEY})::bit(32)::bigint"
_HOLDER = text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
    f"WHERE datname = current_database() AND {_TAKEN}"
)
_HELD = text(f"SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND pid = :backend AND {_TAKEN}")


def postgres_engine(url: URL, read_only: bool = False) -> Engine:
    """An engine with a consistent snapshot per transaction (REPEATABLE READ) and times in UTC.

    Raises ``CacheError`` when the driver is not installed.
    """
    name = f"process {os.getpid()} on {socket.gethostname()}"
    try:
        engine = create_engine(
            url,
            isolation_level="REPEATABLE READ",
            connect_args={"application_name": name[:63], **_ALIVE},
            execution_options={"postgresql_readonly": read_only},
        )
    except ModuleNotFoundError as error:
        raise CacheError(
            f"--rpo.cache.url: no driver for {url.drivername} ({error}): pip install 'psycopg[binary]'."
        ) from error

    @event.listens_for(engine, "connect")
    def set_session(connection: Any, _record: Any) -> None:
        before, connection.autocommit = connection.autocommit, True
        connection.execute("SET timezone TO 'UTC'")
        for setting, value in _ALIVE.items():
            connection.execute(f"SET tcp_{setting} TO {value}")
        # Servers before 14 have no such limit.
        connection.execute("SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'idle_session_timeout'")
        # Tables are looked up in the whole path, and a later schema may have another cache.
        connection.execute(
            "SELECT set_config('search_path', quote_ident(current_schema()), false) WHERE current_schema() IS NOT NULL"
        )
        connection.autocommit = before

    return engine


class AdvisoryLock:
    """The writer's lock, held by a separate connection.

    Raises ``CacheLocked`` when another process holds it, ``CacheUnwritable`` where there is no schema to lock.
    """

    def __init__(self, engine: Engine, where: str) -> None:
        self._where = where
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if self._connection.scalar(text("SELECT current_schema()")) is None:
            path = self._connection.scalar(text("SHOW search_path"))
            self._connection.close()
            raise CacheUnwritable(
                f"Path cache {where}: there is no schema of the search path {path}. Make it (CREATE SCHEMA), or use another "
                "--rpo.cache.url."
            )
        self._backend = self._connection.scalar(
            text(f"SELECT CASE WHEN pg_try_advisory_lock({_KEY}) THEN pg_backend_pid() END")
        )
        if self._backend is None:
            holder = self._connection.scalar(_HOLDER) or "unknown"
            self._connection.close()
            raise CacheLocked(
                f"Path cache {where} is in use by {holder}. Wait for it, end it, or use another --rpo.cache.url."
            )

    def need_held(self) -> None:
        """Raise ``CacheLocked`` when the server closed the connection and thereby released the lock, or a pooler gave this
        connection another one's server process."""
        try:
            held = self._connection.scalar(_HELD, {"backend": self._backend})
        except DBAPIError as error:
            raise CacheLocked(
                f"Path cache {self._where}: the server ended the connection that held the writer's lock "
                f"({str(error.orig).strip()}). What was committed is whole; resume."
            ) from error
        if not held:
            raise CacheLocked(
                f"Path cache {self._where}: the connection that took the writer's lock does not hold it, as behind a "
                "transaction pooler: --rpo.cache.url needs a direct or session-pooled connection. What was committed is "
                "whole; resume."
            )

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._connection.closed:
            return
        if not self._connection.invalidated:
            # Closing alone releases it only when the server notices, so that opening again at once could fail.
            with contextlib.suppress(DBAPIError):
                self._connection.scalar(text(f"SELECT pg_advisory_unlock({_KEY})"))
        self._connection.invalidate()
        self._connection.close()
