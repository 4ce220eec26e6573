"""What can be wrong with a path cache. Every message says what is wrong, where, and what to do."""

from sqlalchemy.exc import DBAPIError, IntegrityError


class CacheError(RuntimeError):
    """Base of all errors of the path cache; what was committed before it is whole."""


class CacheMismatch(CacheError):
    """The cache belongs to a run with another data set, tokenizer, template or base model."""


class CacheLocked(CacheError):
    """Another process holds the cache."""


class CacheNewer(CacheError):
    """The database has a schema revision that this version of the package does not know."""


class CacheCorrupt(CacheError):
    """The file is not a database, or its bytes are damaged."""


class CacheUnwritable(CacheError):
    """No permission, a read-only file, or no space left."""


_RESTORE = "Put the copy beside a checkpoint in its place, or remove the file and start anew"
_SPACE = "Nothing of this transaction was stored and earlier ones are whole; free space on the disk and resume"
# SQLite's own words, stable over its versions, in the order in which they are looked for.
_SQLITE: tuple[tuple[str, type[CacheError], str], ...] = (
    ("file is not a database", CacheCorrupt, _RESTORE),
    ("malformed", CacheCorrupt, _RESTORE),
    ("could not decode to utf-8", CacheCorrupt, _RESTORE),
    ("database or disk is full", CacheUnwritable, _SPACE),
    ("disk i/o error", CacheUnwritable, _SPACE + " (the disk may also be failing or over quota)"),
    ("readonly database", CacheUnwritable, "Make the file and its folder writable"),
    ("unable to open database file", CacheUnwritable, "Check that the folder exists and can be written"),
    ("is locked", CacheLocked, "Another program has the file open for writing; close it"),
)


def translated(error: DBAPIError, where: str) -> CacheError:
    """The ``CacheError`` that says what a driver's error means. ``where`` names the database."""
    cause = str(error.orig)
    if isinstance(error, IntegrityError):
        return CacheError(f"Path cache {where} refused the rows ({cause}). Nothing of this transaction was stored.")
    for words, kind, advice in _SQLITE:
        if words in cause.lower():
            return kind(f"Path cache {where}: {cause}. {advice}.")
    return CacheError(f"Path cache {where} failed: {cause}.")
