"""Errors of the path cache. Every message says what is wrong, where, and what to do."""

import contextlib
import pathlib
import re
import shlex
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError, IntegrityError

from openrlhf_rpo.errors import UserError


class CacheError(UserError):
    """Base of all path cache errors. Earlier commits are intact."""


class CacheMismatch(CacheError):
    """The cache belongs to a run with another data set, tokenizer, template or base model."""


class CacheLocked(CacheError):
    """Another process holds the cache."""


class CacheOlder(CacheError):
    """The database has an older schema revision, which a run upgrades but a reader must not."""


class CacheNewer(CacheError):
    """The database has a schema revision unknown to this version of the package."""


class CacheCorrupt(CacheError):
    """The file is not a database, or its bytes are damaged."""


class CacheUnwritable(CacheError):
    """No permission, a read-only file, or no space left."""


_SPACE = "Nothing of this transaction was stored and earlier ones are whole; free space on the disk and resume"
_SERVER = (
    "Check that the server runs, that the database exists, the user in --rpo.cache.url, and the password in ~/.pgpass or "
    "PGPASSWORD"
)
_OWN = (".db", ".sqlite", ".sqlite3")
"""Suffixes of files we may tell users to remove; others may be weights or data, named by mistake."""
# Prefixes of PostgreSQL's SQLSTATE codes; the first match counts.
_POSTGRES: tuple[tuple[str, type[CacheError], str], ...] = (
    ("53100", CacheUnwritable, _SPACE),
    ("25006", CacheUnwritable, "The server or this connection may only read"),
    ("42501", CacheUnwritable, "Give the user of --rpo.cache.url the right to create and change tables"),
    ("XX", CacheCorrupt, ""),
    ("3D", CacheUnwritable, "Create it (createdb) or correct --rpo.cache.url"),
    ("28", CacheUnwritable, _SERVER),
    ("08", CacheUnwritable, _SERVER),
    ("57P", CacheUnwritable, "What was committed is whole; resume when the server is up"),
)
# SQLite's messages, which are stable across versions; the first match counts.
_SQLITE: tuple[tuple[str, type[CacheError], str], ...] = (
    ("file is not a database", CacheCorrupt, ""),
    ("malformed", CacheCorrupt, ""),
    ("could not decode to utf-8", CacheCorrupt, ""),
    ("database or disk is full", CacheUnwritable, _SPACE),
    ("disk i/o error", CacheUnwritable, _SPACE + " (the disk may also be failing or over quota)"),
    ("readonly database", CacheUnwritable, "Make the file and its folder writable"),
    ("unable to open database file", CacheUnwritable, "Check that the folder exists and can be written"),
    ("is locked", CacheLocked, "Another program has the file open for writing; close it"),
)


def beside_checkpoint(file: pathlib.Path) -> bool:
    """Whether a file is the copy of a cache in the folder of a checkpoint."""
    return file.parent.parent.name == "_actor"


def cure_of(where: str) -> str:
    """How to recover from a damaged database, with the copy beside the latest checkpoint if there is one."""
    file = pathlib.Path(where)
    latest = file.parent / "_actor" / "latest"
    remove = f"`rm -f {shlex.join([f'{file}{suffix}' for suffix in ('', '-wal', '-shm')])}`"
    if beside_checkpoint(file):
        return (
            f"It is the copy beside a checkpoint: name another one in {file.parent.parent / 'latest'}, and resume from that."
        )
    if "://" in where:
        return "Make an empty database, then resume with --ckpt.load_enable: the copy beside the checkpoint fills it."
    tag = latest.read_text(errors="replace").strip() if latest.is_file() else ""
    if re.fullmatch(r"\w{1,99}", tag) and (copy := latest.parent / tag / file.name).is_file():
        return f"{remove}, then resume with --ckpt.load_enable: the copy {copy} takes its place."
    if file.suffix not in _OWN:
        return "Is it a path cache? Name a run's --ckpt.path, or the database that its --rpo.cache.url names."
    return f"{remove}, then put the copy beside a checkpoint in its place, or start over."


def translated(error: DBAPIError, where: str) -> CacheError:
    """The ``CacheError`` that explains a driver's error. ``where`` names the database."""
    cause = str(error.orig)
    if isinstance(error, IntegrityError):
        return CacheError(f"Path cache {where} refused the rows ({cause}). Nothing of this transaction was stored.")
    state = getattr(error.orig, "sqlstate", None)
    known = [(words in cause.lower(), kind, advice) for words, kind, advice in _SQLITE]
    if "://" in where:
        # Without a state, the server was unreachable or closed the connection.
        known = [((state or "08").startswith(begin), kind, advice) for begin, kind, advice in _POSTGRES]
    for matches, kind, advice in known:
        if matches:
            return kind(f"Path cache {where}: {cause.strip()}. {advice + '.' if advice else cure_of(where)}")
    return CacheError(f"Path cache {where} failed: {cause.strip()}.")


@contextlib.contextmanager
def readable_errors(where: str) -> Iterator[None]:
    """Turn driver errors into ``CacheError``s that name the database, the cause and the remedy."""
    try:
        yield
    except DBAPIError as error:
        raise translated(error, where) from error
    except sqlite3.Error as error:
        raise translated(DBAPIError(None, None, error), where) from error
    except UnicodeDecodeError as error:
        # The driver's message quotes the damaged bytes.
        raise CacheCorrupt(f"Path cache {where} is damaged ({error}). {cure_of(where)}") from error
