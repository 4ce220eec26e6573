"""How a path may continue: a question's stored paths, looked up by the latest tokens.

As in LZ77, positions that follow the same tokens form a chain. The longest match in it wins and, among equals, the one
nearest to the new path's current position, because answers to one question are laid out alike.
"""

from collections.abc import Sequence

import numba
import numpy as np

PAD = -1
"""Before each path, and after the last."""
ORDERS = (2, 1)
"""The fewest last tokens that must match: first so many, else so many."""
LONGEST = 32
"""Matches are compared up to this length."""
MOST = 64
"""Positions of a chain that are looked at, newest path first."""


class PathIndex:
    """The paths, newest first, each an array of token ids."""

    def __init__(self, paths: Sequence[np.ndarray]) -> None:
        pad = np.full(max(ORDERS), PAD, np.int32)
        self.text = np.concatenate([part for path in paths for part in (pad, path)] + [pad]).astype(np.int32)
        offsets = [np.arange(-len(pad), len(path), dtype=np.int32) for path in paths]
        self.offset = np.concatenate([*offsets, np.full(len(pad), PAD, np.int32)])
        self.chains = [_chain(self.text, order) for order in ORDERS]

    def after(self, path: np.ndarray, most: int) -> list[int]:
        """At most ``most`` tokens that may follow ``path``, the question's new path so far; none if nothing matches."""
        for order, (head, following) in zip(ORDERS, self.chains, strict=True):
            place = _best(self.text, self.offset, head, following, path, order)
            if place >= 0:
                return _until_pad(self.text, place, most).tolist()
        return []


@numba.njit(cache=True)
def _key(text: np.ndarray, end: int, order: int, size: int) -> int:
    """A hash of the ``order`` tokens before ``end``; PAD stands before the first."""
    value = np.uint64(1469598103934665603)
    for i in range(end - order, end):
        token = text[i] if i >= 0 else PAD
        value = (value ^ np.uint64(token + 1)) * np.uint64(1099511628211)
    return int((value ^ (value >> np.uint64(29))) & np.uint64(size - 1))


@numba.njit(cache=True)
def _chain(text: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Each chain's first position, and each position's successor; -1: none. Chains are in text order."""
    size = 16
    while size < len(text):
        size *= 2
    head = np.full(size, -1, np.int32)
    following = np.full(len(text), -1, np.int32)
    for end in range(len(text) - 1, -1, -1):
        if text[end] != PAD:
            key = _key(text, end, order, size)
            following[end] = head[key]
            head[key] = end
    return head, following


@numba.njit(cache=True)
def _best(
    text: np.ndarray, offset: np.ndarray, head: np.ndarray, following: np.ndarray, path: np.ndarray, order: int
) -> int:
    """The position after the longest match with the end of ``path``, of at least ``order`` tokens; -1: none."""
    best, longest, nearest = -1, order - 1, 0
    end = head[_key(path, len(path), order, len(head))]
    for _ in range(MOST):
        if end < 0:
            break
        length = 0
        while length < LONGEST:
            here = path[len(path) - 1 - length] if length < len(path) else PAD
            if text[end - 1 - length] != here:
                break
            length += 1
            if here == PAD:
                break
        far = abs(offset[end] - len(path))
        if length > longest or (length == longest and best >= 0 and far < nearest):
            best, longest, nearest = end, length, far
        end = following[end]
    return best


@numba.njit(cache=True)
def _until_pad(text: np.ndarray, start: int, most: int) -> np.ndarray:
    end = start
    while end < len(text) and end < start + most and text[end] != PAD:
        end += 1
    return text[start:end]
