"""``PathCache``: the only reader and writer of cached paths (spec sections 6 and 7).

The single controller owns it. Rows are only added: the cache at step t is, for each question, the row with the largest
step <= t, so that going back to step t is deleting what is newer.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, TypeVar

from sqlalchemy import Select, and_, delete, distinct, func, insert, select
from sqlalchemy.orm import Session

from openrlhf_rpo import __version__
from openrlhf_rpo.cache.codec import (
    CodecError,
    decode_log_probs,
    decode_token_ids,
    encode_log_probs,
    encode_token_ids,
)
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, CacheMismatch
from openrlhf_rpo.cache.models import EvaluationRow, PathRow, RunRow, StepRow, VisitRow
from openrlhf_rpo.cache.session import Database, restore_database
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit

_SLOT = 0
# Bound variables a query: below the limit of every database.
_CHUNK = 500
_FINGERPRINT = "fingerprint."
_INITIALISED = "initialised"
_INITIAL_TOKENS = "initial_tokens"
Row = TypeVar("Row", PathRow, VisitRow)


class PathCache:
    """The path cache of one run, open for one process. Made by ``PathCache.open``; also a context manager.

    Every method may raise ``CacheError`` or one of its kinds (``cache.errors``), never a bare driver error.
    """

    def __init__(self, database: Database, store_log_probs: bool) -> None:
        self._database = database
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
            if fingerprints is not None:
                cache._claim(fingerprints)
        except BaseException:
            cache.close()
            raise
        return cache

    @staticmethod
    def restore(copy_path: str, url: str) -> None:
        """Put a copy made by ``copy_to`` in the place of a missing database, atomically."""
        restore_database(copy_path, url)

    def copy_to(self, path: str) -> None:
        """A consistent copy as one file: complete and on the disk, or not there at all."""
        self._database.copy_to(path)

    def close(self) -> None:
        """Let go of the database; a second call does nothing."""
        self._database.close()

    def __enter__(self) -> "PathCache":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def latest_step(self) -> int:
        """The newest committed step; 0 when only the initial cache is complete, -1 before that."""
        with self._database.transaction() as session:
            return _latest_step(session)

    @property
    def initialised(self) -> bool:
        """Whether the initial cache, C(0), is complete."""
        with self._database.transaction() as session:
            return session.get(RunRow, _INITIALISED) is not None

    def mark_initialised(self) -> None:
        """The initial cache is complete (it may be empty: init progressive). A second call changes nothing."""
        with self._database.transaction() as session:
            if session.get(RunRow, _INITIALISED) is None:
                session.add(RunRow(key=_INITIALISED, value="yes"))

    def paths(self, question_ids: Iterable[str], step: int | None = None) -> dict[str, Path]:
        """The cached path of each question at ``step`` (default: now). A question without one is absent."""
        with self._database.transaction() as session:
            rows = _newest(session, PathRow, question_ids, step)
            return {row.question_id: self._path(row) for row in rows}

    def visits(self, question_ids: Iterable[str], step: int | None = None) -> dict[str, Visit]:
        """The newest visit of each question at ``step`` (default: now). A question never visited is absent."""
        with self._database.transaction() as session:
            return {row.question_id: _visit(row) for row in _newest(session, VisitRow, question_ids, step)}

    def question_ids_with_path(self) -> set[str]:
        """The questions that have a cached path: what an interrupted bulk initialisation need not sample again."""
        with self._database.transaction() as session:
            return set(session.scalars(select(PathRow.question_id).where(PathRow.slot == _SLOT).distinct()))

    def least_recently_visited(self, n: int, exclude: Set[str] = frozenset()) -> list[str]:
        """Up to ``n`` questions to replay: they have a path, are not to start bare, and waited longest since a visit.

        Ties go by question id, so that a resumed run finds the same ones.
        """
        # Both sides are reduced to a row a question before they meet: joined as they are, a question's rows would multiply.
        cached = select(PathRow.question_id).where(PathRow.slot == _SLOT).distinct().subquery()
        last = select(VisitRow.question_id, func.max(VisitRow.step).label("step")).group_by(VisitRow.question_id).subquery()
        query = (
            select(cached.c.question_id)
            .join(last, last.c.question_id == cached.c.question_id, isouter=True)
            .order_by(func.coalesce(last.c.step, 0), cached.c.question_id)
        )
        found: list[str] = []
        with self._database.transaction() as session:
            waiting = [question_id for question_id in session.scalars(query) if question_id not in exclude]
        for start in range(0, len(waiting), _CHUNK):
            ids = waiting[start : start + _CHUNK]
            visits = self.visits(ids)
            found += [i for i in ids if i not in visits or not visits[i].start_bare]
            if len(found) >= n:
                break
        return found[:n]

    def count(self) -> int:
        """The number of questions that have a cached path."""
        with self._database.transaction() as session:
            return session.scalar(select(func.count(distinct(PathRow.question_id))).where(PathRow.slot == _SLOT)) or 0

    @property
    def initial_tokens(self) -> int:
        """Tokens generated for the initial cache, those of samples that were not kept included."""
        with self._database.transaction() as session:
            row = session.get(RunRow, _INITIAL_TOKENS)
            return int(row.value) if row is not None else 0

    def commit_initial(self, paths: Sequence[Path], generated_tokens: int = 0) -> None:
        """Add paths to the initial cache (step 0), all or none. Raises once it was marked as initialised.

        ``generated_tokens`` were sampled for this batch, and are counted whether or not their paths are kept.
        """
        rows = [self._row(path, step=0) for path in paths]
        with self._database.transaction() as session:
            if session.get(RunRow, _INITIALISED) is not None:
                raise self._error("the initial cache is complete, nothing can be added to it")
            _insert(session, PathRow, rows)
            before = session.get(RunRow, _INITIAL_TOKENS)
            total = generated_tokens + (int(before.value) if before is not None else 0)
            session.merge(RunRow(key=_INITIAL_TOKENS, value=str(total)))

    def commit_step(self, record: StepRecord, decisions: Sequence[CacheDecision]) -> None:
        """Store the changed paths, the visits and the record of one step in one transaction; on the disk on return.

        ``record.step`` is the latest step + 1, and every path and visit carries it.
        """
        for decision in decisions:
            if decision.visit.step != record.step:
                raise self._error(
                    f"a visit of question {decision.visit.question_id} at step {decision.visit.step} "
                    f"is not of step {record.step}"
                )
            if decision.path is not None and decision.path.question_id != decision.visit.question_id:
                raise self._error(
                    f"a path of question {decision.path.question_id} came with a visit of {decision.visit.question_id}"
                )
        paths = [self._row(decision.path, record.step) for decision in decisions if decision.path is not None]
        visits = [_fields(decision.visit) for decision in decisions]
        metrics = _finite(record.metrics)
        with self._database.transaction() as session:
            latest = _latest_step(session)
            if record.step != latest + 1 or record.step < 1:
                state = f"the latest step is {latest}" if latest >= 0 else "the initial cache is not complete"
                raise self._error(f"step {record.step} cannot be committed, {state}")
            _insert(session, PathRow, paths)
            _insert(session, VisitRow, visits)
            _insert(session, StepRow, [_fields(record) | {"metrics": metrics}])

    def records(self, after: int = 0) -> list[StepRecord]:
        """The records of the steps after ``after``, oldest first. A metric that was not finite comes back as NaN."""
        query = select(StepRow.step, StepRow.episode, StepRow.consumed, StepRow.metrics)
        with self._database.transaction() as session:
            try:
                rows = session.execute(query.where(StepRow.step > after).order_by(StepRow.step)).all()
            except json.JSONDecodeError as error:
                raise self._damaged("the metrics of a step", error) from error
        return [StepRecord(step, episode, consumed, _with_nan(metrics)) for step, episode, consumed, metrics in rows]

    def record_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Store the held-out figures of the policy after ``step``; the same step again replaces them."""
        with self._database.transaction() as session:
            session.merge(EvaluationRow(step=step, metrics=_finite(metrics)))

    def evaluations(self) -> list[tuple[int, dict[str, float]]]:
        """(step, held-out figures), oldest first."""
        query = select(EvaluationRow.step, EvaluationRow.metrics).order_by(EvaluationRow.step)
        with self._database.transaction() as session:
            rows = session.execute(query).all()
        return [(step, _with_nan(metrics)) for step, metrics in rows]

    def rollback(self, step: int) -> int:
        """Remove every row newer than ``step``; returns the number of removed steps.

        Raises when the cache does not reach ``step``: then it is not the one the checkpoint was written with.
        """
        with self._database.transaction() as session:
            latest = _latest_step(session)
            if not 0 <= step <= max(latest, 0):
                raise self._error(
                    f"it ends at step {latest} and cannot go back to step {step}. To resume from the checkpoint of "
                    "that step, remove the cache and restore the copy beside the checkpoint"
                )
            session.execute(delete(PathRow).where(PathRow.step > step))
            session.execute(delete(VisitRow).where(VisitRow.step > step))
            session.execute(delete(StepRow).where(StepRow.step > step))
            session.execute(delete(EvaluationRow).where(EvaluationRow.step > step))
            return max(latest, 0) - step

    def _claim(self, fingerprints: dict[str, str]) -> None:
        with self._database.transaction() as session:
            meta = {row.key: row.value for row in session.scalars(select(RunRow))}
            if "package_version" not in meta or _holds_nothing(session):
                session.execute(delete(RunRow))
                rows = {_FINGERPRINT + name: value for name, value in fingerprints.items()}
                rows["package_version"] = __version__
                _insert(session, RunRow, [{"key": key, "value": value} for key, value in rows.items()])
                return
        cached = {key.removeprefix(_FINGERPRINT): v for key, v in meta.items() if key.startswith(_FINGERPRINT)}
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

    def _row(self, path: Path, step: int) -> dict[str, Any]:
        if path.step != step:
            raise self._error(f"the path of question {path.question_id} is of step {path.step}, not of step {step}")
        if step == 0 and (path.parent_id is not None or path.prefix_length):
            raise self._error(f"the initial path of question {path.question_id} has a parent or a prefix")
        if path.log_probs is not None and len(path.log_probs) != len(path):
            raise self._error(
                f"the path of question {path.question_id} has {len(path)} tokens and {len(path.log_probs)} log-probs"
            )
        try:
            token_ids = encode_token_ids(path.token_ids)
            log_probs = None
            if path.log_probs is not None and self._store_log_probs:
                log_probs = encode_log_probs(path.log_probs)
        except CodecError as error:
            raise self._error(f"the path of question {path.question_id} cannot be stored: {error}") from error
        return {
            "question_id": path.question_id,
            "slot": _SLOT,
            "step": step,
            "token_ids": token_ids,
            "log_probs": log_probs,
            "n_tokens": len(path),
            "finish_reason": path.finish_reason,
            "score": float(path.score),
            "reward": float(path.reward),
            "prefix_length": path.prefix_length,
            "parent_id": path.parent_id,
        }

    def _path(self, row: PathRow) -> Path:
        try:
            token_ids = decode_token_ids(row.token_ids)
            log_probs = None if row.log_probs is None else decode_log_probs(row.log_probs)
        except CodecError as error:
            raise self._damaged(f"path {row.id} of question {row.question_id}", error) from error
        if len(token_ids) != row.n_tokens or len(log_probs or token_ids) != row.n_tokens:
            raise self._damaged(f"path {row.id} of question {row.question_id}", "its length differs from its row's")
        return Path(
            question_id=row.question_id,
            token_ids=token_ids,
            log_probs=log_probs,
            finish_reason=row.finish_reason,  # type: ignore[arg-type]
            score=row.score,
            reward=row.reward,
            prefix_length=row.prefix_length,
            step=row.step,
            path_id=row.id,
            parent_id=row.parent_id,
        )

    def _error(self, what: str) -> CacheError:
        return CacheError(f"Path cache {self._database.where}: {what}.")

    def _damaged(self, what: str, cause: object) -> CacheCorrupt:
        return CacheCorrupt(
            f"Path cache {self._database.where}: {what} is damaged ({cause}). "
            "Put the copy beside a checkpoint in its place, or remove the file and start anew."
        )


def _holds_nothing(session: Session) -> bool:
    """Made by a command that was refused before it sampled anything, and open to any run."""
    return _latest_step(session) == -1 and session.get(RunRow, _INITIAL_TOKENS) is None


def _latest_step(session: Session) -> int:
    newest = session.scalar(select(func.max(StepRow.step)))
    if newest is not None:
        return int(newest)
    return 0 if session.get(RunRow, _INITIALISED) is not None else -1


def _newest(session: Session, table: type[Row], question_ids: Iterable[str], step: int | None) -> Iterator[Row]:
    """For each question the row with the largest step <= ``step``: the definition of the cache at a step."""
    ids = list(dict.fromkeys(question_ids))
    for start in range(0, len(ids), _CHUNK):
        yield from session.scalars(_newest_query(table, ids[start : start + _CHUNK], step)).all()


def _newest_query(table: type[Row], ids: list[str], step: int | None) -> Select[Any]:
    candidates: list[Any] = [table.question_id.in_(ids)]
    if step is not None:
        candidates.append(table.step <= step)
    slot = [table.slot == _SLOT] if issubclass(table, PathRow) else []
    newest = (
        select(table.question_id, func.max(table.step).label("step"))
        .where(*candidates, *slot)
        .group_by(table.question_id)
        .subquery()
    )
    same = and_(table.question_id == newest.c.question_id, table.step == newest.c.step)
    return select(table).join(newest, same).where(*slot)


def _insert(session: Session, table: type[Any], rows: list[dict[str, Any]]) -> None:
    # An insert without rows would be one row of defaults.
    if rows:
        session.execute(insert(table), rows)


def _finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: float(v) if math.isfinite(v) else None for name, v in metrics.items()}


def _with_nan(metrics: dict[str, float | None]) -> dict[str, float]:
    """Inverse of ``_finite``."""
    return {name: math.nan if v is None else v for name, v in metrics.items()}


def _fields(value: Visit | StepRecord) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _visit(row: VisitRow) -> Visit:
    return Visit(**{name: getattr(row, name) for name in Visit.__slots__})
