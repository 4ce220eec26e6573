"""The testbed's tokenizer, a second one with reversed ids, and a small cache."""

import json
from collections.abc import Iterator
from pathlib import Path as File

import pytest

from lab.testbed import model_dir
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.types import CacheDecision, Path, Question, StepRecord, Visit

QUESTIONS = [Question(f"id{i}", f"<u>{i}+{i}?", str(2 * i), text=f"{i}+{i}?") for i in range(4)]
TEXTS = [f"{i}+{i}={2 * i}\n\\boxed{{{2 * i}}}" for i in range(4)]


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(str(model_dir("main")), offline=True)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> File:
    """A folder with a tokenizer in which id n >= 3 is the character that has id 50 - n in the testbed's."""
    folder = tmp_path_factory.mktemp("other")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_bytes((model_dir("main") / name).read_bytes())
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    size = len(vocabulary)
    content["model"]["vocab"] = {token: i if i < 3 else size + 2 - i for token, i in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def other_tokenizer(other_model: File):
    return load_tokenizer(str(other_model), offline=True)


def encoded(tokenizer, text: str) -> tuple[int, ...]:
    return (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)


@pytest.fixture
def url(tmp_path: File) -> str:
    return f"sqlite:///{tmp_path}/run/rpo_cache.db"


@pytest.fixture
def filled(url: str, tokenizer) -> Iterator[PathCache]:
    """Questions 0 to 3 have a path in C(0); step 1 replaced that of question 1 by one that keeps its first 4 tokens."""
    with PathCache.open(url, {"tokenizer": tokenizer_fingerprint(tokenizer)}) as cache:
        cache.describe(QUESTIONS, str(model_dir("main")))
        ids = [encoded(tokenizer, text) for text in TEXTS]
        cache.commit_initial(
            [Path(q.question_id, i, (-0.5,) * len(i), "stop", 1.0, 1.0) for q, i in zip(QUESTIONS, ids, strict=True)]
        )
        cache.mark_initialised()
        parent = cache.paths(["id1"])["id1"]
        text = "1+1=2 2\n\\boxed{2}"
        new = Path("id1", encoded(tokenizer, text), None, "stop", 1.0, 0.5, 4, 1, parent_id=parent.path_id)
        visits = [
            CacheDecision(new, Visit("id1", 1, len(parent) - 4, 4, 16, 4, 3, "best")),
            CacheDecision(None, Visit("id2", 1, 3, 9, 12, 4, 0, "reset", start_bare=True)),
        ]
        cache.commit_step(StepRecord(1, 0, 2, {"rpo/score": 0.4, "rpo/cache/replaced": 0.5}), visits)
        yield cache
