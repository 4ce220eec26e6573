"""Random draws keyed by what they are for, so that a resumed run draws the same (spec sections 2, 6 and 7).

Nothing reads or advances a global random state. A key is hashed with sha256: Python's own ``hash`` of a string differs
from process to process.
"""

import hashlib
import json
import random


def keyed_generator(seed: int, step: int, question_id: str, purpose: str) -> random.Random:
    """A fresh generator for one purpose of one question in one step; equal keys give equal draws.

    ``purpose`` keeps the draws of different rules apart: "cut", "fresh", "update", "order".
    """
    return random.Random(_hash(seed, step, question_id, purpose))


def request_seed(seed: int, step: int, question_id: str, sample_index: int) -> int:
    """The engine's seed for one sample, 0 <= seed < 2**31; the samples of a group get different ones."""
    return _hash(seed, step, question_id, "request", sample_index) % 2**31


def episode_order(seed: int, episode: int, n: int) -> list[int]:
    """The order of n questions in an episode: a permutation of range(n), another one each episode."""
    order = list(range(n))
    keyed_generator(seed, episode, "", "order").shuffle(order)
    return order


def _hash(*key: int | str) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest())
