"""Random draws keyed by their purpose, so that a resumed run repeats them. No global random state is read or advanced.

Keys are hashed with sha256 because Python's ``hash`` of a string differs between processes.
"""

import hashlib
import json
import random
from functools import lru_cache


def keyed_generator(seed: int, step: int, question_id: str, purpose: str) -> random.Random:
    """A fresh generator for one purpose ("cut", "update", "order") of one question in one step."""
    return random.Random(_hash(seed, step, question_id, purpose))


def request_seed(seed: int, step: int, question_id: str, sample_index: int, n_tokens: int = 0) -> int:
    """The engine's seed, 0 <= seed < 2**31, for a group's sample that has ``n_tokens`` new tokens."""
    key = ("request", sample_index, n_tokens) if n_tokens else ("request", sample_index)
    return _hash(seed, step, question_id, *key) % 2**31


@lru_cache(maxsize=1)  # asked for again with every question
def episode_order(seed: int, episode: int, n: int) -> list[int]:
    """The order of the questions in an episode: a permutation of range(n), different in each episode."""
    order = list(range(n))
    keyed_generator(seed, episode, "", "order").shuffle(order)
    return order


def _hash(*key: int | str) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest())
