"""``PathCache``, the only writer of cached paths, owned by the single controller (docs/cache.md)."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from openrlhf_rpo import __version__
from openrlhf_rpo.cache import upkeep
from openrlhf_rpo.cache.errors import CacheMismatch
from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.cache.inspection import Inspection
from openrlhf_rpo.cache.models import EvaluationRow, PathRow, QuestionRow, RunRow, StepRow, UnfinishedRow, VisitRow
from openrlhf_rpo.cache.replay import ReplayQueue
from openrlhf_rpo.cache.rows import (
    FINGERPRINT,
    INITIAL_REACHED,
    INITIAL_TOKENS,
    INITIALISED,
    MODEL,
    OPTION,
    fields,
    finite,
    holds_nothing,
    insert_rows,
    kept_from,
    kept_steps,
    latest_step,
    next_path_id,
    path_values,
    replace_row,
    run_value,
    set_kept,
    storable,
)
from openrlhf_rpo.cache.session import SQLITE, Database, Snapshot, is_missing, restore_database
from openrlhf_rpo.cache.unfinished import unfinished_values
from openrlhf_rpo.types import Begun, CacheDecision, Path, Question, StepRecord


class PathCache(CacheHistory):
    """The path cache of one run, open in one process. Created by ``PathCache.open``; also a context manager.

    Every method may raise ``CacheError`` or a subclass (``cache.errors``), never a driver's error.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._queue: ReplayQueue | None = None

    @classmethod
    def open(cls, url: str, fingerprints: dict[str, str] | None = None) -> "PathCache":
        """Open or create the cache at ``url``. The first run to open it stores ``fingerprints``; later ones must match.

        Without ``fingerprints``, any run's cache can be opened.

        Raises ``CacheMismatch`` (other fingerprints), ``CacheLocked`` (another process), ``CacheNewer`` (schema of a
        later version), ``CacheCorrupt`` (damaged or not a database), ``CacheUnwritable``.
        """
        inspection = Inspection(url)  # first: a refused file stays as it was
        try:
            cache = cls(Database.open(url))
        except BaseException:
            inspection.close()
            raise
        try:
            cache._inspection = inspection
            if fingerprints is not None:
                cache._claim(fingerprints)
        except BaseException:
            cache.close()
            raise
        return cache

    @classmethod
    def open_to_read(cls, url: str) -> "PathCache":
        """Open the cache at ``url`` read-only and without the writer's lock, even while a run writes it.

        Raises ``CacheError`` when there is none, ``CacheOlder``, ``CacheNewer``, ``CacheCorrupt``, ``CacheUnwritable``.
        """
        return cls(Database.open_to_read(url))

    is_missing = staticmethod(is_missing)
    """Whether there is no cache at a URL: no file, or a database without tables."""

    @staticmethod
    def restore(copy: str, url: str) -> None:
        """Restore the missing database at ``url`` from a copy made by ``copy_to``, atomically, once all of the copy is read.

        Raises ``CacheError``.
        """
        Inspection(f"{SQLITE}{copy}").wait()
        restore_database(copy, url)

    def snapshot(self) -> Snapshot:
        """The cache as it is now, to be copied by any thread while steps are committed."""
        return self._database.snapshot()

    def copy_to(self, path: str) -> None:
        """Write a consistent copy at ``path`` as one SQLite file, atomically and synced to disk."""
        with self.snapshot() as snapshot:
            snapshot.copy_to(path)

    def close(self) -> None:
        """Close the database; a second call does nothing."""
        try:
            if self._inspection is not None:
                self._inspection.close()
        finally:
            self._database.close()

    def wait_until_inspected(self, progress: upkeep.Progress | None = None) -> None:
        """Wait until the whole cache has been checked since opening; ``progress(rows done, rows in all)``.

        Opening does so for caches up to ``inspection.AT_ONCE`` bytes; for larger ones the first commit, ``rollback`` and
        ``prune``. Raises ``CacheCorrupt``.
        """
        if self._inspection is not None:
            self._inspection.wait(progress)

    def __enter__(self) -> "PathCache":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # ── Writing ──

    def describe(self, questions: Sequence[Question], model: str) -> None:
        """Store what people need to read the cache: its questions, and the model whose tokenizer it uses.

        Replaces stored questions only if they differ, which happens after a run that failed in its checks.
        """
        ids = {question.question_id for question in questions}
        with self._transaction() as session:
            replace_row(session, RunRow, key=MODEL, value=storable(model))
            if ids != set(session.scalars(select(QuestionRow.question_id))):
                session.execute(delete(QuestionRow))
                rows = [{name: storable(str(v)) for name, v in fields(question).items()} for question in questions]
                insert_rows(session, QuestionRow, rows)

    def mark_initialised(self) -> None:
        """Mark the initial cache as complete; with progressive initialisation it is empty. Idempotent."""
        with self._transaction() as session:
            if run_value(session, INITIALISED) is None:
                replace_row(session, RunRow, key=INITIALISED, value="yes")

    def set_options(self, options: dict[str, str]) -> None:
        """Replace the stored options, which a resumed run is compared with."""
        with self._transaction() as session:
            session.execute(delete(RunRow).where(RunRow.key.startswith(OPTION, autoescape=True)))
            insert_rows(session, RunRow, [{"key": OPTION + name, "value": value} for name, value in options.items()])

    def commit_initial(
        self, paths: Sequence[Path], generated_tokens: int = 0, reached: tuple[int, int] | None = None
    ) -> None:
        """Add paths to the initial cache (step 0), all or none. Raises after ``mark_initialised``.

        ``generated_tokens`` counts all tokens sampled for this batch, whether or not their paths are kept.
        ``reached`` is stored as ``initial_reached``, so that an interrupted initialisation does not repeat questions.
        """
        self.wait_until_inspected()
        rows = self._values(paths, 0)
        with self._transaction() as session:
            if run_value(session, INITIALISED) is not None:
                raise self._error("the initial cache is complete, nothing can be added to it")
            self._queue = None
            self._insert_paths(session, rows)
            total = generated_tokens + int(run_value(session, INITIAL_TOKENS) or 0)
            replace_row(session, RunRow, key=INITIAL_TOKENS, value=str(total))
            if reached is not None:
                replace_row(session, RunRow, key=INITIAL_REACHED, value=f"{reached[0]}:{reached[1]}")

    def commit_step(self, record: StepRecord, decisions: Sequence[CacheDecision], waiting: Sequence[Begun] = ()) -> None:
        """Store a step's new paths, visits, record and waiting groups in one transaction, on disk on return.

        ``record.step`` must be the latest step + 1, and the step of every path and visit. ``waiting``: groups for later
        steps, with their samples so far; scores are not stored.
        """
        self.wait_until_inspected()
        for decision in decisions:
            question_id, step = decision.visit.question_id, decision.visit.step
            if step != record.step:
                raise self._error(f"a visit of question {question_id} at step {step} is not of step {record.step}")
            for path in decision.paths:
                if path.question_id != question_id:
                    raise self._error(f"a path of question {path.question_id} came with a visit of {question_id}")
        paths = self._values([path for decision in decisions for path in decision.paths], record.step)
        visits = [fields(decision.visit) for decision in decisions]
        unfinished = self._encoded(
            lambda: [row for i, group in enumerate(waiting) for row in unfinished_values(group, record.step, i)]
        )
        metrics = finite(record.metrics)
        with self._transaction() as session:
            latest = latest_step(session)
            if record.step != latest + 1 or record.step < 1:
                state = f"the latest step is {latest}" if latest >= 0 else "the initial cache is not complete"
                raise self._error(f"step {record.step} cannot be committed, {state}")
            self._insert_paths(session, paths)
            insert_rows(session, VisitRow, visits)
            insert_rows(session, UnfinishedRow, unfinished)
            insert_rows(session, StepRow, [fields(record) | {"metrics": metrics, "created_at": datetime.now(UTC)}])
        if self._queue is not None:
            self._queue.advance(decisions)

    def record_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Store the evaluation metrics of the policy after ``step``, replacing earlier ones of that step."""
        with self._transaction() as session:
            replace_row(session, EvaluationRow, step=step, metrics=finite(metrics))

    def rollback(self, step: int) -> int:
        """Remove every row newer than ``step`` and return the number of removed steps.

        Raises when the cache ends before ``step``: it is then not the one the checkpoint was written with.
        """
        if self.latest_step > step:  # else nothing goes, and a resumed run starts meanwhile
            self.wait_until_inspected()
        self._queue = None
        with self._transaction() as session:
            latest = latest_step(session)
            if not 0 <= step <= max(latest, 0):
                raise self._error(
                    f"it ends at step {latest} and cannot go back to step {step}. To resume from the checkpoint of "
                    "that step, remove the cache and restore the copy beside the checkpoint"
                )
            self._need_kept(session, step)
            if step < (kept_from(session) or 0):  # the steps that come next can be read again
                set_kept(session, step, [kept for kept in kept_steps(session) if kept < step])
            for table in (UnfinishedRow, PathRow, VisitRow, StepRow, EvaluationRow):
                session.execute(delete(table).where(table.step > step))
            return max(latest, 0) - step

    # ── Upkeep ──

    def verify(self, progress: upkeep.Progress | None = None) -> list[str]:
        """Decode every row and return a sentence per damage; ``progress(rows done, rows in all)``."""
        with self._transaction() as session:
            return self._database.structure_damages(session) + list(upkeep.damages(session, progress))

    def prune(self, keep_from: int, steps: Collection[int] = ()) -> int:
        """Remove paths that neither a step >= ``keep_from`` nor one of ``steps`` reads and return their number.

        ``paths(ids, step)`` stays the same for these steps, except that a path may lose its parent. Reading and rolling
        back to other steps is then refused; ``steps`` already refused stay refused. Raises when ``keep_from`` is
        newer than the latest step.
        """
        self.wait_until_inspected()
        with self._transaction() as session:
            latest = latest_step(session)
            if keep_from > latest:
                raise self._error(f"it ends at step {latest}, and pruning would have to keep step {keep_from}")
            start, kept = kept_from(session) or 0, kept_steps(session)
            if keep_from < max(start, 1):
                return 0
            still = [step for step in set(steps) if step < keep_from and (step >= start or step in kept)]
            set_kept(session, keep_from, still)
            return upkeep.prune(session, keep_from, still)

    def size(self) -> int:
        """Bytes that the rows take in the database, without the space of removed ones (PostgreSQL: with it)."""
        with self._transaction() as session:
            return self._database.size(session)

    def vacuum(self) -> None:
        """Return the space of removed rows to the file system; temporarily needs as much space as all rows take."""
        self._database.vacuum()

    def _claim(self, fingerprints: dict[str, str]) -> None:
        with self._transaction() as session:
            meta = {row.key: row.value for row in session.scalars(select(RunRow))}
            if "package_version" not in meta or holds_nothing(session):
                session.execute(delete(RunRow))
                rows = {FINGERPRINT + name: value for name, value in fingerprints.items()}
                rows["package_version"] = __version__
                insert_rows(session, RunRow, [{"key": key, "value": value} for key, value in rows.items()])
                return
            cached = {key.removeprefix(FINGERPRINT): v for key, v in meta.items() if key.startswith(FINGERPRINT)}
            if all(fingerprints.get(name) == value for name, value in cached.items()):
                since = fingerprints.keys() - cached  # not stored by an earlier version
                insert_rows(session, RunRow, [{"key": FINGERPRINT + name, "value": fingerprints[name]} for name in since])
                return
        what = "; ".join(
            f"{name} fingerprint differs (cached {cached.get(name, 'none')}, this run {fingerprints.get(name, 'none')})"
            for name in sorted(cached | fingerprints)
            if cached.get(name) != fingerprints.get(name)
        )
        raise CacheMismatch(
            f"Path cache {self._database.where} belongs to another run: {what}. "
            "Use another --ckpt.path or --rpo.cache.url, or remove the file."
        )

    def _replay_queue(self) -> ReplayQueue:
        if self._database.read_only:  # does not see the writer's steps
            return super()._replay_queue()
        if self._queue is None:
            self._queue = super()._replay_queue()
        return self._queue

    @staticmethod
    def _insert_paths(session: Session, rows: list[dict[str, Any]]) -> None:
        first = next_path_id(session)
        insert_rows(session, PathRow, [{"id": first + i} | row for i, row in enumerate(rows)])

    def _values(self, paths: Sequence[Path], step: int) -> list[dict[str, Any]]:
        return self._encoded(lambda: [path_values(path, step) for path in paths])

    def _encoded(self, rows: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        try:
            return rows()
        except ValueError as error:
            raise self._error(error) from error
