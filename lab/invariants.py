"""Invariants of every finished run in data order, whatever the clock decided, checked in its path cache.

With ``--train.partial_rollout_enable`` the clock decides which policy samples which token, so two runs are not equal. These
still hold for each, with B questions per step, n questions, E episodes and a queue of N batches (0: synchronous), if B
divides n, ``--rpo.replay.share`` is 0, dynamic sampling is off, ``--rpo.init.mode`` progressive, --rpo.async.max_age at
least N, and N * B less than n (or all questions could be in flight):

- *Steps* are 1 to E * n / B, each once.
- *Turns*: every question is visited E times, each time because it was its turn, and the e-th time not before the stream has
  reached episode e. For the stream passes every question once per episode, and a pass ends in one visit, unless it is
  skipped because the question is in that batch already (only where an episode ends within a batch); it is postponed while
  the question is in flight. So many visits need all E * n passes, so at the end none is missing.
- *Batches*: a step has B questions, each once.
- *Paths* of step t belong to questions visited at t. Their parts cover all tokens; a prefix has its parent's parts; versions
  grow from the prefix to the end, because a response is by policies at least as new as the cache it started from; the
  response's versions are t - 1 - N to t - 1.
- *Totals*: each step adds to ``rpo/tokens_generated_total`` the tokens that its visits generated, more than 0.
- *Parents* are earlier paths of the same question, and the prefix is their head.
"""

import json
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, create_engine, text

from openrlhf_rpo.cache.codec import decode_token_ids
from openrlhf_rpo.cache.columns import parts_of
from openrlhf_rpo.cache.rows import INITIAL_TOKENS, OPTION
from openrlhf_rpo.run.checkpoints import CACHE_FILE
from openrlhf_rpo.run.metrics import GENERATED_TOTAL


@contextmanager
def copied_cache(folder: Path) -> Iterator[Connection]:
    """A copy of the path cache of the run in ``folder``, because opening a cache repairs it; empty if there is none."""
    with tempfile.TemporaryDirectory() as temporary:
        for file in (folder / "checkpoints").glob(f"{CACHE_FILE}*"):
            shutil.copy(file, temporary)
        engine = create_engine(f"sqlite:///{temporary}/{CACHE_FILE}")
        with engine.connect() as connection:
            yield connection
        engine.dispose()


@dataclass(frozen=True)
class StoredPath:
    """A row of ``paths``. ``versions``: for each token, the completed steps of the policy that sampled it."""

    row: Row[Any]
    tokens: Sequence[int]
    versions: Sequence[int]

    def __str__(self) -> str:
        return f"path {self.row.id} of step {self.row.step}"


@dataclass(frozen=True)
class Finished:
    """A run's rows as they are stored; ``visits`` by step and ``paths`` by id."""

    options: Mapping[str, Any]
    questions: Sequence[str]
    initial_tokens: int
    steps: Sequence[Row[Any]]
    visits: Mapping[int, Sequence[Row[Any]]]
    paths: Mapping[int, StoredPath]

    @property
    def episodes(self) -> int:
        return int(self.options["train.num_episodes"])

    @property
    def batch(self) -> int:
        return int(self.options["rollout.batch_size"])

    @property
    def queue(self) -> int:
        return int(self.options["train.async_queue_size"]) if self.options["train.async_enable"] else 0


def read(connection: Connection) -> Finished:
    """All rows of a path cache."""
    runs = {row.key: row.value for row in connection.execute(text("SELECT * FROM runs"))}
    visits = defaultdict(list)
    for visit in connection.execute(text("SELECT * FROM visits ORDER BY step, question_id")):
        visits[visit.step].append(visit)
    paths = {row.id: _stored(row) for row in connection.execute(text("SELECT * FROM paths ORDER BY id"))}
    return Finished(
        options={key.removeprefix(OPTION): json.loads(value) for key, value in runs.items() if key.startswith(OPTION)},
        questions=connection.execute(text("SELECT question_id FROM questions ORDER BY question_id")).scalars().all(),
        initial_tokens=int(runs.get(INITIAL_TOKENS, 0)),
        steps=connection.execute(text("SELECT * FROM steps ORDER BY step")).all(),
        visits=visits,
        paths=paths,
    )


def _stored(row: Row[Any]) -> StoredPath:
    versions = [version for version, n_tokens in parts_of(row.parts) for _ in range(n_tokens)]
    return StoredPath(row, decode_token_ids(row.token_ids), versions)


def violations(folder: Path) -> list[str]:
    """A sentence for each place where the finished run in ``folder`` breaks an invariant."""
    with copied_cache(folder) as connection:
        run = read(connection)
    return [sentence for check in (steps, turns, batches, paths, totals, parents) for sentence in check(run)]


def steps(run: Finished) -> Iterator[str]:
    """Steps are 1 to the last one, without gaps."""
    found, last = [step.step for step in run.steps], run.episodes * len(run.questions) // run.batch
    if found != list(range(1, last + 1)):
        yield f"the steps are not 1 to {last}: {found}"


def turns(run: Finished) -> Iterator[str]:
    """Every question has its turn once per episode, and the stream is at its end."""
    consumed, passes = {step.step: step.consumed for step in run.steps}, run.episodes * len(run.questions)
    if (last := max(consumed.values(), default=0)) != passes:
        yield f"the stream of questions ended at {last}, not at {passes}"
    asked = Counter[str]()
    for step, visits in run.visits.items():
        for visit in visits:
            if visit.asked != "turn":
                yield f"step {step} asked question {visit.question_id} for another reason than its turn: {visit.asked}"
            elif consumed.get(step, passes) <= asked[visit.question_id] * len(run.questions):
                yield f"step {step} asked question {visit.question_id} again before the next episode began"
            asked[visit.question_id] += visit.asked == "turn"
    for name in sorted({*run.questions, *asked}):
        if asked[name] != run.episodes:
            yield f"question {name} had {asked[name]} turns in {run.episodes} episodes"


def batches(run: Finished) -> Iterator[str]:
    """A step has as many questions as it trains on, each once."""
    for step in run.steps:
        names = Counter(visit.question_id for visit in run.visits.get(step.step, ()))
        yield from (f"step {step.step} has question {name} {n} times" for name, n in names.items() if n > 1)
        if names.total() != run.batch:
            yield f"step {step.step} has {names.total()} questions, not {run.batch}"


def paths(run: Finished) -> Iterator[str]:
    """A path belongs to a question that its step visited, and is by policies the step could have used."""
    visited = {step: {visit.question_id for visit in visits} for step, visits in run.visits.items()}
    for path in run.paths.values():
        row, versions = path.row, path.versions
        inherited, new = versions[: row.prefix_length], versions[row.prefix_length :]
        oldest, newest = max(0, row.step - 1 - run.queue), row.step - 1
        if row.question_id not in visited.get(row.step, ()):
            yield f"{path} is of question {row.question_id}, which that step did not visit"
        if not len(versions) == len(path.tokens) == row.n_tokens:
            yield f"{path} has {len(path.tokens)} tokens, n_tokens {row.n_tokens}, and parts of {len(versions)}"
        if list(versions) != sorted(versions):
            yield f"{path} has parts that grow older: {row.parts}"
        if not new or not oldest <= min(new) <= max(new) <= newest:
            yield f"{path} has no response of policies {oldest} to {newest}: {row.parts}, prefix {row.prefix_length}"
        if row.parent_id in run.paths and inherited != run.paths[row.parent_id].versions[: row.prefix_length]:
            yield f"{path} has a prefix of other parts than its parent: {row.parts}"


def totals(run: Finished) -> Iterator[str]:
    """Every generated token belongs to a visit, and every step generates some."""
    before = float(run.initial_tokens)
    for step in run.steps:
        total = float(json.loads(step.metrics)[GENERATED_TOTAL])
        visits = sum(visit.n_tokens for visit in run.visits.get(step.step, ()))
        if total - before != visits or visits <= 0:
            yield f"step {step.step} generated {total - before:g} tokens, its visits {visits}"
        before = total


def parents(run: Finished) -> Iterator[str]:
    """A prefix is the head of an earlier path of the question."""
    for path in run.paths.values():
        row, parent = path.row, run.paths.get(path.row.parent_id)
        if parent is None:
            if row.parent_id is not None or row.prefix_length:
                yield f"{path} has {row.prefix_length} tokens of path {row.parent_id}, which there is not"
        elif row.question_id != parent.row.question_id or row.step <= parent.row.step or row.id <= parent.row.id:
            yield f"{path} has the parent {parent}, which is no earlier path of its question"
        elif path.tokens[: row.prefix_length] != parent.tokens[: row.prefix_length]:
            yield f"{path} does not begin with {row.prefix_length} tokens of its parent, {parent}"
