"""Atomic file replacement that survives a power cut."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary file beside ``target`` that replaces it, synced to disk, when the block succeeds.

    Its name is unique, so the last of several writers leaves a whole file. A killed writer leaves it behind.

    Raises OSError and then leaves the target unchanged.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def unwritable(file: Path) -> str | None:
    """Why a file cannot be written, or None if it can; makes its folder."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{file.parent} cannot be made: {error.strerror}"
    if file.is_dir():
        return "it is a folder"
    return None if os.access(file.parent, os.W_OK) else f"{file.parent} is not writable"


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
