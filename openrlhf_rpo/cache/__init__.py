"""The path cache: stored paths of each question, versioned by step, in a crash-safe database."""

from openrlhf_rpo.cache.store import PathCache

__all__ = ["PathCache"]
