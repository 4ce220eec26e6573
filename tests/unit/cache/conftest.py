"""Real SQLite files in a temporary folder, and small builders."""

from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any

import pytest

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit

FINGERPRINTS = {"data": "d1", "tokenizer": "t1"}


def build_path(question_id: str = "q", token_ids: tuple[int, ...] = (1, 2, 3), **fields: Any) -> Path:
    values = {"log_probs": (-1.0,) * len(token_ids), "finish_reason": "stop", "score": 1.0, "reward": 0.75} | fields
    return Path(question_id=question_id, token_ids=token_ids, **values)


def build_visit(question_id: str, step: int, **fields: Any) -> Visit:
    values = {"cut": 2, "prefix_length": 1, "shortest_path": 3, "n_samples": 8, "n_rewarded": 5, "outcome": "best"}
    return Visit(question_id=question_id, step=step, **(values | fields))


def commit_paths(cache: PathCache, step: int, changed: dict[str, tuple[int, ...] | None]) -> None:
    """Commit a step that visits the questions of ``changed``: new token ids, or None to keep the path."""
    decisions = [
        CacheDecision(None if ids is None else build_path(question, ids, step=step), build_visit(question, step))
        for question, ids in changed.items()
    ]
    cache.commit_step(StepRecord(step, 0, 8 * step, {"reward": step / 2}), decisions)


@pytest.fixture
def path() -> Callable[..., Path]:
    return build_path


@pytest.fixture
def visit() -> Callable[..., Visit]:
    return build_visit


@pytest.fixture
def commit() -> Callable[..., None]:
    return commit_paths


@pytest.fixture
def file(tmp_path: File) -> File:
    return tmp_path / "run" / "rpo_cache.db"


@pytest.fixture
def url(file: File) -> str:
    return f"sqlite:///{file}"


@pytest.fixture
def reopen(url: str) -> Callable[..., PathCache]:
    """Opens the cache of this test with the fingerprints of its run."""

    def open_cache(**fields: Any) -> PathCache:
        return PathCache.open(url, FINGERPRINTS, **fields)

    return open_cache


@pytest.fixture
def cache(reopen: Callable[..., PathCache]) -> Iterator[PathCache]:
    """C(0): question q has the path 1 2 3, question r the path 4 5."""
    with reopen() as opened:
        opened.commit_initial([build_path("q", (1, 2, 3)), build_path("r", (4, 5))])
        opened.mark_initialised()
        yield opened
