"""The path cache: one stored path a question, versioned by step, in a database that survives a crash."""

from openrlhf_rpo.cache.errors import (
    CacheCorrupt,
    CacheError,
    CacheLocked,
    CacheMismatch,
    CacheNewer,
    CacheOlder,
    CacheUnwritable,
)
from openrlhf_rpo.cache.store import PathCache

__all__ = [
    "CacheCorrupt",
    "CacheError",
    "CacheLocked",
    "CacheMismatch",
    "CacheNewer",
    "CacheOlder",
    "CacheUnwritable",
    "PathCache",
]
