"""The writer's lock: a lock file beside the database, held while the cache is open."""

import errno
import fcntl
import os
import pathlib
import shlex
import socket
import weakref

from openrlhf_rpo.cache.errors import CacheLocked, CacheUnwritable


class WriterLock:
    """``flock`` on ``<database>.lock``, which names its holder. The kernel releases it when the process ends.

    The file is never removed, or two processes could lock two files of the same name.
    Raises ``CacheLocked`` when another process (or another cache object of this one) holds it, or could hold it under
    another name; ``CacheUnwritable`` when the file cannot be created or the file system has no locks.
    """

    def __init__(self, database: pathlib.Path) -> None:
        if database.exists() and database.stat().st_nlink > 1:
            raise CacheLocked(
                f"Path cache {database} is one of several names of one file (hard links), and a process could hold it under "
                f"another: SQLite keeps a log for each name. End other runs of it, then give it a file of its own: "
                f"`cp {shlex.quote(str(database))} own.db && mv own.db {shlex.quote(str(database))}`."
            )
        file = database.with_name(database.name + ".lock")
        try:
            # A link, in a folder from someone else, could name any file of this user's, which would be emptied.
            self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise _unwritable(database, file, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 200, 0).decode(errors="replace") or "unknown"
            os.close(self._fd)
            raise CacheLocked(
                f"Path cache {database} is in use by process {holder}. "
                "Wait for it, end it, or use another --ckpt.path or --rpo.cache.url."
            ) from error
        except OSError as error:  # ENOLCK, EOPNOTSUPP, ENOSYS: some network file systems
            os.close(self._fd)
            raise CacheUnwritable(
                f"Path cache {database}: cannot lock {file.name} beside it ({error.strerror}), its file system has no "
                "locks: give --rpo.cache.url on a local disk."
            ) from error
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
        except OSError as error:  # no space left, or over quota
            os.close(self._fd)
            raise _unwritable(database, file, error) from error
        _held.add(self)

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        if self in _held:
            _held.discard(self)
            os.close(self._fd)


def _unwritable(database: pathlib.Path, file: pathlib.Path, error: OSError) -> CacheUnwritable:
    if error.errno == errno.ELOOP:
        return CacheUnwritable(f"Path cache {database}: {file.name} beside it is a symbolic link, which is not followed.")
    return CacheUnwritable(
        f"Path cache {database}: cannot write {file.name} beside it ({error.strerror}). Make its folder writable, or free "
        "space on its disk."
    )


_held: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _drop_in_child() -> None:
    """A forked child, such as a reward process, must not keep the lock when it outlives a killed trainer."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_drop_in_child)
