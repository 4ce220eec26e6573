"""Invariants of a run whose samples depend on the clock: a run made by hand holds them all, and each one can break.

Two questions a step of four, two episodes, one batch ahead. Step 3 goes on from two paths of step 1; the responses of q0's
next path were stopped by a weight sync and are of two policies::

    step  questions  policies    consumed, with the batch that is in flight
    1     q0 q1      0           4
    2     q2 q3      0           8: q2 and q3 were postponed, and q0 and q1 came first
    3     q0 q1      1, then 2   8
    4     q2 q3      3           8
"""

import json
import sqlite3
from pathlib import Path as File

import pytest

from lab.invariants import violations
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.types import CacheDecision, Part, Path, Question, StepRecord, Visit

OPTIONS = {"train.num_episodes": 2, "rollout.batch_size": 2, "train.async_enable": True, "train.async_queue_size": 1}


def decision(name: str, step: int, parts: tuple[Part, ...], prefix: int = 0, parent: int | None = None) -> CacheDecision:
    """A question's new path, and a visit that generated ten tokens in all its samples."""
    ids = [9 if step == 4 else 7] * sum(part.n_tokens for part in parts)
    path = Path(name, ids, [-1.0] * len(ids), "stop", 1.0, 1.0, prefix, step, parent_id=parent, parts=parts)
    return CacheDecision(path, Visit(name, step, 2, prefix, 6, 4, 4, "best", n_tokens=10))


@pytest.fixture
def run(tmp_path: File) -> File:
    (tmp_path / "checkpoints").mkdir()
    first, longer = (Part(0, 6),), (Part(0, 3), Part(1, 2), Part(2, 1))
    with PathCache.open(f"sqlite:///{tmp_path}/checkpoints/rpo_cache.db") as cache:
        cache.describe([Question(f"q{i}", "p", "l") for i in range(4)], "model")
        cache.set_options({name: json.dumps(value) for name, value in OPTIONS.items()})
        cache.mark_initialised()
        for step, decisions in enumerate(
            [
                [decision("q0", 1, first), decision("q1", 1, first)],
                [decision("q2", 2, first), decision("q3", 2, first)],
                [decision("q0", 3, longer, 3, 1), decision("q1", 3, (Part(0, 4), Part(2, 1)), 4, 2)],
                [decision("q2", 4, (Part(3, 5),)), decision("q3", 4, (Part(3, 5),))],
            ],
            start=1,
        ):
            figures = {"rpo/tokens_generated_total": 20.0 * step}
            cache.commit_step(StepRecord(step, 0, min(8, 4 * step), figures), decisions)
    return tmp_path


def broken(run: File, *statements: str) -> list[str]:
    """What is found after the statements have changed the stored rows; paths 1 to 8 are in the order of the steps."""
    connection = sqlite3.connect(run / "checkpoints" / "rpo_cache.db")
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return violations(run)


def test_a_run_as_it_should_be_breaks_nothing(run):
    assert violations(run) == []


def test_the_cache_itself_is_left_as_it_was(run):
    before = {file.name: file.read_bytes() for file in (run / "checkpoints").iterdir()}
    violations(run)
    assert {file.name: file.read_bytes() for file in (run / "checkpoints").iterdir()} == before


TWICE = (
    "CREATE TABLE copied AS SELECT * FROM visits",
    "DROP TABLE visits",
    "ALTER TABLE copied RENAME TO visits",
    "UPDATE visits SET question_id = 'q2' WHERE step = 2",
)
"""The key of the table would refuse it."""


@pytest.mark.parametrize(
    ("statements", "sentence"),
    [
        (["DELETE FROM steps WHERE step = 2"], "the steps are not 1 to 4: [1, 3, 4]"),
        (["DELETE FROM steps WHERE step = 4"], "the steps are not 1 to 4: [1, 2, 3]"),
        (["UPDATE steps SET consumed = 7"], "the stream of questions ended at 7, not at 8"),
        (
            ["UPDATE visits SET question_id = 'q0' WHERE step = 4 AND question_id = 'q3'"],
            "question q3 had 1 turns in 2 episodes",
        ),
        (
            ["UPDATE visits SET question_id = 'q4' WHERE step = 4 AND question_id = 'q3'"],
            "question q4 had 1 turns in 2 episodes",
        ),
        (
            [
                "UPDATE visits SET question_id = 'q0' WHERE step = 2 AND question_id = 'q2'",
                "UPDATE steps SET consumed = 2 * step",
            ],
            "step 2 asked question q0 again before the next episode began",
        ),
        (
            ["UPDATE visits SET asked = 'replay' WHERE step = 3 AND question_id = 'q1'"],
            "step 3 asked question q1 for another reason than its turn: replay",
        ),
        (TWICE, "step 2 has question q2 2 times"),
        (["DELETE FROM visits WHERE step = 2 AND question_id = 'q2'"], "step 2 has 1 questions, not 2"),
        (
            ["UPDATE paths SET question_id = 'q1' WHERE id = 7"],
            "path 7 of step 4 is of question q1, which that step did not visit",
        ),
        (["UPDATE paths SET parts = '0:5' WHERE id = 3"], "path 3 of step 2 has 6 tokens, n_tokens 6, and parts of 5"),
        (["UPDATE paths SET n_tokens = 7 WHERE id = 3"], "path 3 of step 2 has 6 tokens, n_tokens 7, and parts of 6"),
        (["UPDATE paths SET parts = '0:3 2:1 1:2' WHERE id = 5"], "path 5 of step 3 has parts that grow older: 0:3 2:1 1:2"),
        (
            ["UPDATE paths SET parts = '4:5' WHERE id = 8"],
            "path 8 of step 4 has no response of policies 2 to 3: 4:5, prefix 0",
        ),
        (
            ["UPDATE paths SET parts = '1:5' WHERE id = 8"],
            "path 8 of step 4 has no response of policies 2 to 3: 1:5, prefix 0",
        ),
        (
            ["UPDATE paths SET parts = '-1:6' WHERE id = 1"],
            "path 1 of step 1 has no response of policies 0 to 0: -1:6, prefix 0",
        ),
        (
            ["UPDATE paths SET parts = '1:4 2:1' WHERE id = 6"],
            "path 6 of step 3 has a prefix of other parts than its parent: 1:4 2:1",
        ),
        (
            ["UPDATE visits SET n_tokens = 9 WHERE step = 2 AND question_id = 'q2'"],
            "step 2 generated 20 tokens, its visits 19",
        ),
        (
            ["""UPDATE steps SET metrics = '{"rpo/tokens_generated_total": 10.0}' WHERE step = 3"""],
            "step 3 generated -30 tokens, its visits 20",
        ),
        (["UPDATE paths SET parent_id = 99 WHERE id = 5"], "path 5 of step 3 has 3 tokens of path 99, which there is not"),
        (
            ["UPDATE paths SET parent_id = NULL WHERE id = 5"],
            "path 5 of step 3 has 3 tokens of path None, which there is not",
        ),
        (
            ["UPDATE paths SET parent_id = 6 WHERE id = 5"],
            "path 5 of step 3 has the parent path 6 of step 3, which is no earlier path of its question",
        ),
        (
            ["UPDATE paths SET parent_id = 2 WHERE id = 5"],
            "path 5 of step 3 has the parent path 2 of step 1, which is no earlier path of its question",
        ),
        (
            ["UPDATE paths SET token_ids = (SELECT token_ids FROM paths WHERE id = 7) WHERE id = 6"],
            "path 6 of step 3 does not begin with 4 tokens of its parent, path 2 of step 1",
        ),
        (
            ["UPDATE paths SET prefix_length = 6 WHERE id = 5"],
            "path 5 of step 3 has no response of policies 1 to 2: 0:3 1:2 2:1, prefix 6",
        ),
    ],
)
def test_what_does_not_hold_is_said(run, statements, sentence):
    assert sentence in broken(run, *statements)


def test_the_initial_cache_counts_as_generated_before_the_first_step(run):
    found = broken(run, "INSERT INTO runs (key, value, checksum) VALUES ('initial_tokens', '5', 0)")
    assert found == ["step 1 generated 15 tokens, its visits 20"]
