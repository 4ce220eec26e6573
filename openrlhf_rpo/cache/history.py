"""Reading a cache: paths, visits and records at any step, and the lineage of a path."""

import contextlib
from collections.abc import Iterable, Iterator, Set
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from openrlhf_rpo.cache.codec import CodecError
from openrlhf_rpo.cache.columns import BadValue
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, cure_of
from openrlhf_rpo.cache.inspection import Inspection
from openrlhf_rpo.cache.models import EvaluationRow, PathRow, QuestionRow, RunRow, StepRow, UnfinishedRow, VisitRow, in_utc
from openrlhf_rpo.cache.replay import ReplayQueue
from openrlhf_rpo.cache.rows import (
    CHUNK,
    FINGERPRINT,
    INITIAL_REACHED,
    INITIAL_TOKENS,
    INITIALISED,
    MODEL,
    OPTION,
    check,
    chunks,
    evaluation_of,
    holds_nothing,
    kept_from,
    kept_steps,
    last_visits,
    latest_step,
    name_of,
    newest,
    newest_in_slots,
    newest_query,
    path_of,
    question_of,
    record_of,
    run_value,
    visit_of,
)
from openrlhf_rpo.cache.session import Database
from openrlhf_rpo.cache.unfinished import begun_of
from openrlhf_rpo.cache.upkeep import bad_values
from openrlhf_rpo.types import OWN, Begun, Path, Question, StepRecord, Visit


class PathOutline(NamedTuple):
    """A stored path without its tokens: ``length`` is their number, ``step`` the step that wrote it."""

    question_id: str
    step: int
    length: int
    score: float
    reward: float


def parent_of(row: PathRow, session: Session) -> PathRow | None:
    """The path that a row was cut from, or None. Raises ``CodecError`` for an impossible parent."""
    if row.parent_id is None:
        return None
    parent = session.get(PathRow, row.parent_id)
    if (
        parent is None
        or parent.question_id != row.question_id
        or parent.step >= row.step
        or parent.n_tokens < row.prefix_length
    ):
        raise CodecError(f"{name_of(row, PathRow)} has an impossible parent, path {row.parent_id}")
    return parent


class CacheHistory:
    """The reading half of ``PathCache``. Every method may raise ``CacheError`` or a subclass."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inspection: Inspection | None = None

    # ── The run ──

    @property
    def fingerprints(self) -> dict[str, str]:
        """What the cache belongs to (``run.files.fingerprints``); empty before a run has claimed it."""
        with self._transaction() as session:
            return self._run_values(session, FINGERPRINT)

    @property
    def options(self) -> dict[str, str]:
        """The options stored by ``set_options``; empty in caches older than that."""
        with self._transaction() as session:
            return self._run_values(session, OPTION)

    @property
    def initial_reached(self) -> tuple[int, int]:
        """(round, questions done in it) of a bulk initialisation, as given to ``commit_initial``; at first (0, 0)."""
        with self._transaction() as session:
            attempt, _, passed = (run_value(session, INITIAL_REACHED) or "0:0").partition(":")
        return int(attempt), int(passed)

    @property
    def latest_step(self) -> int:
        """The newest committed step: 0 when only the initial cache is complete, -1 before that."""
        with self._transaction() as session:
            return latest_step(session)

    @property
    def initialised(self) -> bool:
        """Whether the initial cache, C(0), is complete."""
        with self._transaction() as session:
            return run_value(session, INITIALISED) is not None

    @property
    def holds_nothing(self) -> bool:
        """Whether nothing was sampled yet, so any run may claim the cache."""
        with self._transaction() as session:
            return holds_nothing(session)

    @property
    def kept_from(self) -> int:
        """The first step from which all can be read or rolled back to: 0 unless the cache was pruned."""
        with self._transaction() as session:
            return kept_from(session) or 0

    @property
    def kept_steps(self) -> list[int]:
        """Steps before ``kept_from`` that can also be read or rolled back to: those of checkpoints."""
        with self._transaction() as session:
            return kept_steps(session)

    @property
    def initial_tokens(self) -> int:
        """Tokens generated for the initial cache, including samples that were not kept."""
        with self._transaction() as session:
            return int(run_value(session, INITIAL_TOKENS) or 0)

    def records(self, after: int = 0) -> list[StepRecord]:
        """The records of the steps after ``after``, oldest first. Metrics that were not finite are NaN."""
        query = select(StepRow).where(StepRow.step > after).order_by(StepRow.step)
        with self._transaction() as session:
            return [record_of(row) for row in session.scalars(query)]

    @property
    def latest_at(self) -> datetime | None:
        """When the latest step was committed."""
        with self._transaction() as session:
            at = session.scalar(select(StepRow.created_at).order_by(StepRow.step.desc()).limit(1))
        return None if at is None else in_utc(at)

    def evaluations(self) -> list[tuple[int, dict[str, float]]]:
        """(step, evaluation metrics), oldest first."""
        query = select(EvaluationRow).order_by(EvaluationRow.step)
        with self._transaction() as session:
            return [evaluation_of(row) for row in session.scalars(query)]

    @property
    def model(self) -> str | None:
        """The base model's folder or hub name, as stored by ``describe``; None before that."""
        with self._transaction() as session:
            return run_value(session, MODEL)

    def questions(self) -> dict[str, Question]:
        """The run's questions by id, as stored by ``describe``, sorted; empty before that."""
        with self._transaction() as session:
            found = {row.question_id: question_of(row) for row in session.scalars(select(QuestionRow))}
        return dict(sorted(found.items()))

    # ── The cache at a step ──

    def outlines(self, after: int = -1) -> Iterator[PathOutline]:
        """Every path stored after step ``after``, superseded ones included, by step and question; decodes nothing."""
        columns = (PathRow.question_id, PathRow.step, PathRow.n_tokens, PathRow.score, PathRow.reward)
        stored = (PathRow.slot == OWN, PathRow.step > after)
        query = select(*columns).where(*stored).order_by(PathRow.step, PathRow.question_id)
        with self._transaction() as session:
            for row in session.execute(query.execution_options(yield_per=10 * CHUNK)):
                yield PathOutline(*row)

    def paths(self, question_ids: Iterable[str], step: int | None = None) -> dict[str, Path]:
        """The cached path of each question at ``step`` (default: now). A question without one is absent.

        Raises if the paths of that step were pruned, like the other methods that read paths at a step.
        """
        with self._transaction() as session:
            self._need_kept(session, step)
            return {row.question_id: path_of(row) for row in newest(session, PathRow, question_ids, step)}

    def visits(self, question_ids: Iterable[str], step: int | None = None) -> dict[str, Visit]:
        """The newest visit of each question at ``step`` (default: now). Questions never visited are absent."""
        with self._transaction() as session:
            return {row.question_id: visit_of(row) for row in newest(session, VisitRow, question_ids, step)}

    def slots(self, question_ids: Iterable[str], step: int | None = None) -> dict[str, dict[int, Path]]:
        """The stored paths of each question by slot at ``step`` (default: now). Questions without any are absent."""
        found: dict[str, dict[int, Path]] = {}
        with self._transaction() as session:
            self._need_kept(session, step)
            for ids in chunks(question_ids):
                for row in session.scalars(newest_in_slots(ids, step)):
                    found.setdefault(row.question_id, {})[row.slot] = path_of(row)
        return found

    def all_visits(self, question_ids: Iterable[str]) -> dict[str, tuple[Visit, ...]]:
        """Every visit of each question, oldest first. Questions never visited are absent."""
        found: dict[str, tuple[Visit, ...]] = {}
        with self._transaction() as session:
            for ids in chunks(question_ids):
                query = select(VisitRow).where(VisitRow.question_id.in_(ids))
                for row in session.scalars(query.order_by(VisitRow.step)):
                    found[row.question_id] = (*found.get(row.question_id, ()), visit_of(row))
        return found

    def question_ids(self, step: int | None = None, slot: int = OWN) -> list[str]:
        """The questions that have a path in ``slot`` at ``step`` (default: now), sorted."""
        with self._transaction() as session:
            return self._question_ids(session, step, slot)

    def with_path(self, question_ids: Iterable[str]) -> set[str]:
        """Those of ``question_ids`` that now have a path of their own; reads no path."""
        found: set[str] = set()
        with self._transaction() as session:
            for ids in chunks(question_ids):
                wanted = (PathRow.slot == OWN, PathRow.question_id.in_(ids))
                found.update(session.scalars(select(PathRow.question_id).where(*wanted).distinct()))
        return found

    def iter_paths(self, step: int | None = None) -> Iterator[Path]:
        """The paths in every slot at ``step`` (default: now), by question and slot; few are in memory at a time.

        They are one consistent snapshot, even while a run is writing.
        """
        with self._transaction() as session:
            # Sorted here, ids in chunks, because databases sort text differently. A question may have dozens of paths.
            for ids in chunks(self._question_ids(session, step, slot=None), CHUNK // 50):
                rows = session.scalars(newest_in_slots(ids, step))
                yield from map(path_of, sorted(rows, key=lambda row: (row.question_id, row.slot)))
                session.expunge_all()

    def count(self) -> int:
        """The number of questions that have a cached path."""
        with self._transaction() as session:
            return session.scalar(select(func.count(distinct(PathRow.question_id))).where(PathRow.slot == OWN)) or 0

    def without_log_probs(self) -> int:
        """The number of stored paths, of any step and slot, that have no log-probs."""
        with self._transaction() as session:
            return session.scalar(select(func.count()).select_from(PathRow).where(PathRow.log_probs.is_(None))) or 0

    def least_recently_visited(self, n: int, exclude: Set[str] = frozenset()) -> list[str]:
        """Up to ``n`` questions that have a path and need not start bare, the longest unvisited first.

        Ties are ordered by question id, so that a resumed run finds the same ones.
        """
        return self._replay_queue().first(n, exclude)

    def _replay_queue(self) -> ReplayQueue:
        with self._transaction() as session:
            return ReplayQueue.load(session)

    def unfinished(self) -> list[Begun]:
        """The groups that the latest step left to later steps, in that step's order. Raises ``CacheCorrupt``."""
        with self._transaction() as session:
            rows = session.scalars(select(UnfinishedRow).where(UnfinishedRow.step == latest_step(session))).all()
            of_paths = {row.path_id for row in rows} - {None}
            paths = {row.id: path_of(row) for i in of_paths if (row := session.get(PathRow, i)) is not None}
            return begun_of(rows, paths)

    # ── One question ──

    def lineage(self, question_id: str, step: int | None = None) -> list[Path]:
        """A question's path at ``step`` (default: now) and its ancestors, newest first; empty without a path.

        Each path starts with the first ``prefix_length`` tokens of the next one. The last one has no parent: it is from
        C(0), was sampled from the bare question, or, if its prefix is not empty, its parent was pruned.
        """
        with self._transaction() as session:
            self._need_kept(session, step)
            row = session.scalars(newest_query(PathRow, step, [question_id])).first()
            found: list[Path] = []
            while row is not None:
                found.append(path_of(row))
                row = parent_of(row, session)
            return found

    def visits_of(self, question_id: str) -> list[Visit]:
        """Every visit of a question, oldest first."""
        return list(self.all_visits([question_id]).get(question_id, ()))

    # ── The history of many questions ──

    def versions(self, question_ids: Iterable[str]) -> dict[str, list[Path]]:
        """Every stored path of each question, superseded ones included, oldest first, without log-probs."""
        found: dict[str, list[Path]] = {question_id: [] for question_id in question_ids}
        for ids in chunks(found):
            wanted = (PathRow.slot == OWN, PathRow.question_id.in_(ids))
            with self._transaction() as session:
                for row in session.scalars(select(PathRow).where(*wanted).order_by(PathRow.step)):
                    found[row.question_id].append(path_of(row, with_log_probs=False))
        return found

    def visits_after(self, step: int = 0) -> Iterator[Visit]:
        """Every visit after ``step``, by step and question."""
        query = select(VisitRow).where(VisitRow.step > step).order_by(VisitRow.step, VisitRow.question_id)
        with self._transaction() as session:
            for row in session.scalars(query.execution_options(yield_per=10 * CHUNK)):
                yield visit_of(row)

    def last_visits(self) -> dict[str, int]:
        """The step of each question's newest visit."""
        with self._transaction() as session:
            return last_visits(session)

    # ── Helpers ──

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Session]:
        """One transaction, in which damaged values raise ``CacheCorrupt``."""
        try:
            if self._inspection is not None:
                self._inspection.need_sound()
            with self._database.transaction() as session:
                yield session
        except (CodecError, BadValue) as error:
            what = self._row_of(error) if isinstance(error, BadValue) else error
            raise CacheCorrupt(f"Path cache {self._database.where}: {what}. {cure_of(self._database.where)}") from error

    def _row_of(self, error: BadValue) -> str:
        """Where a bad value is: the column type that found it does not know."""
        with self._database.transaction() as session:
            return next(bad_values(session), f"a row is damaged (a value {error})")

    @staticmethod
    def _run_values(session: Session, prefix: str) -> dict[str, str]:
        rows = session.scalars(select(RunRow).where(RunRow.key.startswith(prefix, autoescape=True))).all()
        for row in rows:
            check(row, RunRow)
        return dict(sorted((row.key.removeprefix(prefix), row.value) for row in rows))

    def _question_ids(self, session: Session, step: int | None, slot: int | None) -> list[str]:
        """Those with a path in ``slot`` (None: any) at ``step``."""
        self._need_kept(session, step)
        query = select(PathRow.question_id).where(*([] if slot is None else [PathRow.slot == slot])).distinct()
        return sorted(session.scalars(query if step is None else query.where(PathRow.step <= step)))

    def _need_kept(self, session: Session, step: int | None) -> None:
        start = kept_from(session)
        if step is None or start is None or step >= start:
            return
        kept = kept_steps(session)
        if step not in kept:
            others = f", and before it only {', '.join(map(str, kept))}" if kept else ""
            raise self._error(f"the paths of step {step} were pruned; the oldest that can be read is step {start}{others}")

    def _error(self, what: object) -> CacheError:
        return CacheError(f"Path cache {self._database.where}: {what}.")
