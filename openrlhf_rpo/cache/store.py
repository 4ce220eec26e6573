"""``PathCache``: the only writer of cached paths (spec sections 6 and 7).

The single controller owns it. Rows are only added: the cache at step t is, for each question, the row with the largest
step <= t, so that going back to step t is deleting what is newer. Pruning removes what no step in use reads any more.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from openrlhf_rpo import __version__
from openrlhf_rpo.cache import upkeep
from openrlhf_rpo.cache.errors import CacheMismatch
from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.cache.inspection import Inspection
from openrlhf_rpo.cache.models import EvaluationRow, PathRow, QuestionRow, RunRow, StepRow, VisitRow
from openrlhf_rpo.cache.replay import ReplayQueue
from openrlhf_rpo.cache.rows import (
    CHUNK,
    FINGERPRINT,
    INITIAL_REACHED,
    INITIAL_TOKENS,
    INITIALISED,
    KEPT_FROM,
    MODEL,
    OPTION,
    fields,
    finite,
    holds_nothing,
    insert_rows,
    kept_from,
    latest_step,
    next_path_id,
    path_values,
    replace_row,
    run_value,
    storable,
)
from openrlhf_rpo.cache.session import Database, is_missing, restore_database
from openrlhf_rpo.types import CacheDecision, Path, Question, StepRecord


class PathCache(CacheHistory):
    """The path cache of one run, open for one process. Made by ``PathCache.open``; also a context manager.

    Every method may raise ``CacheError`` or one of its kinds (``cache.errors``), never a bare driver error.
    """

    def __init__(self, database: Database, store_log_probs: bool) -> None:
        super().__init__(database)
        self._queue: ReplayQueue | None = None
        self._store_log_probs = store_log_probs

    @classmethod
    def open(cls, url: str, fingerprints: dict[str, str] | None = None, *, store_log_probs: bool = True) -> "PathCache":
        """Open or make the cache at ``url``; the first opening stores ``fingerprints``, later ones must agree.

        Without ``fingerprints`` the cache of any run is opened, to look at it.

        Raises ``CacheMismatch`` (other fingerprints), ``CacheLocked`` (another process), ``CacheNewer`` (schema of a
        later version), ``CacheCorrupt`` (no database or a damaged one), ``CacheUnwritable``.
        """
        cache = cls(Database.open(url), store_log_probs)
        try:
            cache._inspection = Inspection(url)
            if fingerprints is not None:
                cache._claim(fingerprints)
        except BaseException:
            cache.close()
            raise
        return cache

    @classmethod
    def open_to_read(cls, url: str) -> "PathCache":
        """The cache at ``url`` to look at, also while a run writes it: no writer lock, and nothing can be changed.

        Raises ``CacheError`` when there is none, ``CacheOlder``, ``CacheNewer``, ``CacheCorrupt``, ``CacheUnwritable``.
        """
        return cls(Database.open_to_read(url), store_log_probs=True)

    @staticmethod
    def is_missing(url: str) -> bool:
        """Whether there is no cache at ``url`` at all, so that ``restore`` could make it."""
        return is_missing(url)

    @staticmethod
    def restore(copy_path: str, url: str) -> None:
        """Put a copy made by ``copy_to`` in the place of a missing database, atomically."""
        restore_database(copy_path, url)

    def copy_to(self, path: str) -> None:
        """A consistent copy as one file: complete and on the disk, or not there at all."""
        self._database.copy_to(path)

    def close(self) -> None:
        """Let go of the database; a second call does nothing."""
        if self._inspection is not None:
            self._inspection.close()
        self._database.close()

    def wait_until_inspected(self, progress: upkeep.Progress | None = None) -> None:
        """Until every byte was looked at once since opening; ``progress(rows done, rows in all)``.

        Opening waits for it by itself up to ``inspection.AT_ONCE`` bytes, and the first step that is committed does so
        for a larger cache. Raises ``CacheCorrupt``.
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

        Questions already stored are left alone unless they are others (of a run that never got beyond its checks).
        """
        ids = {question.question_id for question in questions}
        with self._transaction() as session:
            replace_row(session, RunRow, key=MODEL, value=model)
            if ids != set(session.scalars(select(QuestionRow.question_id))):
                session.execute(delete(QuestionRow))
                for start in range(0, len(questions), CHUNK):
                    chunk = questions[start : start + CHUNK]
                    rows = [{name: storable(str(v)) for name, v in fields(question).items()} for question in chunk]
                    insert_rows(session, QuestionRow, rows)

    def mark_initialised(self) -> None:
        """The initial cache is complete (it may be empty: init progressive). A second call changes nothing."""
        with self._transaction() as session:
            if run_value(session, INITIALISED) is None:
                replace_row(session, RunRow, key=INITIALISED, value="yes")

    def set_options(self, options: dict[str, str]) -> None:
        """Store the options that steer the run, in place of those that were stored."""
        with self._transaction() as session:
            session.execute(delete(RunRow).where(RunRow.key.startswith(OPTION, autoescape=True)))
            insert_rows(session, RunRow, [{"key": OPTION + name, "value": value} for name, value in options.items()])

    def commit_initial(
        self, paths: Sequence[Path], generated_tokens: int = 0, reached: tuple[int, int] | None = None
    ) -> None:
        """Add paths to the initial cache (step 0), all or none. Raises once it was marked as initialised.

        ``generated_tokens`` were sampled for this batch, and are counted whether or not their paths are kept.
        ``reached`` is what ``initial_reached`` then says: questions whose samples failed are not sampled again.
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

    def commit_step(self, record: StepRecord, decisions: Sequence[CacheDecision]) -> None:
        """Store the changed paths, the visits and the record of one step in one transaction; on the disk on return.

        ``record.step`` is the latest step + 1, and every path and visit carries it.
        """
        self.wait_until_inspected()
        for decision in decisions:
            if decision.visit.step != record.step:
                raise self._error(
                    f"a visit of question {decision.visit.question_id} at step {decision.visit.step} "
                    f"is not of step {record.step}"
                )
            for path in decision.paths:
                if path.question_id != decision.visit.question_id:
                    raise self._error(
                        f"a path of question {path.question_id} came with a visit of {decision.visit.question_id}"
                    )
        paths = self._values([path for decision in decisions for path in decision.paths], record.step)
        visits = [fields(decision.visit) for decision in decisions]
        metrics = finite(record.metrics)
        with self._transaction() as session:
            latest = latest_step(session)
            if record.step != latest + 1 or record.step < 1:
                state = f"the latest step is {latest}" if latest >= 0 else "the initial cache is not complete"
                raise self._error(f"step {record.step} cannot be committed, {state}")
            self._insert_paths(session, paths)
            insert_rows(session, VisitRow, visits)
            insert_rows(session, StepRow, [fields(record) | {"metrics": metrics, "created_at": datetime.now(UTC)}])
        if self._queue is not None:
            self._queue.advance(decisions)

    def record_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Store the held-out figures of the policy after ``step``; the same step again replaces them."""
        with self._transaction() as session:
            replace_row(session, EvaluationRow, step=step, metrics=finite(metrics))

    def rollback(self, step: int) -> int:
        """Remove every row newer than ``step``; returns the number of removed steps.

        Raises when the cache does not reach ``step``: then it is not the one the checkpoint was written with.
        """
        self._queue = None
        with self._transaction() as session:
            latest = latest_step(session)
            if not 0 <= step <= max(latest, 0):
                raise self._error(
                    f"it ends at step {latest} and cannot go back to step {step}. To resume from the checkpoint of "
                    "that step, remove the cache and restore the copy beside the checkpoint"
                )
            self._need_kept(session, step)
            session.execute(delete(PathRow).where(PathRow.step > step))
            session.execute(delete(VisitRow).where(VisitRow.step > step))
            session.execute(delete(StepRow).where(StepRow.step > step))
            session.execute(delete(EvaluationRow).where(EvaluationRow.step > step))
            return max(latest, 0) - step

    # ── Upkeep ──

    def verify(self, progress: upkeep.Progress | None = None) -> list[str]:
        """One sentence a damage, after decoding every row; ``progress(rows done, rows in all)``. Empty: all is whole."""
        with self._transaction() as session:
            return self._database.structure_damages(session) + upkeep.damages(session, progress)

    def prune(self, keep_from: int) -> int:
        """Remove the paths that no step from ``keep_from`` on reads; returns their number.

        ``paths(ids, step)`` of every step >= ``keep_from`` stays the same, but a path may lose its parent; a rollback
        to an earlier step is refused from now on. Raises when ``keep_from`` is newer than the latest step.
        """
        with self._transaction() as session:
            latest = latest_step(session)
            if keep_from > latest:
                raise self._error(f"it ends at step {latest}, and pruning would have to keep step {keep_from}")
            if keep_from <= (kept_from(session) or 0):
                return 0
            replace_row(session, RunRow, key=KEPT_FROM, value=str(keep_from))
            return upkeep.prune(session, keep_from)

    def vacuum(self) -> None:
        """Give the space of removed rows back to the file system; needs as much free space as the cache has rows."""
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
        differing = [name for name in sorted(cached | fingerprints) if cached.get(name) != fingerprints.get(name)]
        if differing:
            what = "; ".join(
                f"{name} fingerprint differs (cached {cached.get(name, 'none')}, this run {fingerprints.get(name, 'none')})"
                for name in differing
            )
            raise CacheMismatch(
                f"Path cache {self._database.where} belongs to another run: {what}. "
                "Use another --ckpt.path or --rpo.cache.url, or remove the file."
            )

    def _replay_queue(self) -> ReplayQueue:
        if self._database.read_only:  # the writer's steps go unseen
            return super()._replay_queue()
        if self._queue is None:
            self._queue = super()._replay_queue()
        return self._queue

    @staticmethod
    def _insert_paths(session: Session, rows: list[dict[str, Any]]) -> None:
        first = next_path_id(session)
        insert_rows(session, PathRow, [{"id": first + i} | row for i, row in enumerate(rows)])

    def _values(self, paths: Sequence[Path], step: int) -> list[dict[str, Any]]:
        try:
            return [path_values(path, step, self._store_log_probs) for path in paths]
        except ValueError as error:
            raise self._error(error) from error
