"""Between rows and the nouns of ``types``: what is stored, what comes back, and which rows are the cache at a step."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import sqlalchemy
from sqlalchemy import Select, and_, func, insert, select
from sqlalchemy.orm import Session

from openrlhf_rpo.cache.codec import (
    CodecError,
    check_bytes,
    decode_log_probs,
    decode_token_ids,
    encode_log_probs,
    encode_token_ids,
)
from openrlhf_rpo.cache.models import Base, EvaluationRow, PathRow, QuestionRow, RunRow, StepRow, VisitRow, checksum_of
from openrlhf_rpo.types import OWN, Path, Question, StepRecord, Visit

# Bound variables a query: below the limit of every database.
CHUNK = 500
FINGERPRINT = "fingerprint."
INITIALISED = "initialised"
INITIAL_TOKENS = "initial_tokens"
INITIAL_REACHED = "initial_reached"
OPTION = "option."
KEPT_FROM = "kept_from"
MODEL = "model"
Row = TypeVar("Row", PathRow, VisitRow)
# An object of the ORM, or (what a step reads) the row itself, which costs a quarter of the time.
Read: TypeAlias = Any


def path_values(path: Path, step: int, store_log_probs: bool) -> dict[str, Any]:
    """The columns of a path that ``step`` writes. Raises ValueError with what is wrong with it."""
    if path.step != step:
        raise ValueError(f"the path of question {path.question_id} is of step {path.step}, not of step {step}")
    if step == 0 and (path.parent_id is not None or path.prefix_length):
        raise ValueError(f"the initial path of question {path.question_id} has a parent or a prefix")
    if path.log_probs is not None and len(path.log_probs) != len(path):
        raise ValueError(
            f"the path of question {path.question_id} has {len(path)} tokens and {len(path.log_probs)} log-probs"
        )
    try:
        token_ids = encode_token_ids(path.token_ids)
        log_probs = encode_log_probs(path.log_probs) if path.log_probs is not None and store_log_probs else None
    except CodecError as error:
        raise ValueError(f"the path of question {path.question_id} cannot be stored: {error}") from error
    return {
        "question_id": path.question_id,
        "slot": path.slot,
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


def path_of(row: Read, with_log_probs: bool = True) -> Path:
    """The path of a row. Raises ``CodecError`` when it is damaged or its bytes are not as long as it says."""
    check(row, PathRow)
    try:
        token_ids = decode_token_ids(row.token_ids)
        log_probs = decode_log_probs(row.log_probs) if row.log_probs is not None and with_log_probs else None
    except CodecError as error:
        raise CodecError(f"{name_of(row, PathRow)} is damaged ({error})") from error
    if len(token_ids) != row.n_tokens or (log_probs is not None and len(log_probs) != row.n_tokens):
        raise CodecError(f"{name_of(row, PathRow)} is damaged (its length differs from its row's)")
    return Path(
        question_id=row.question_id,
        token_ids=token_ids,
        log_probs=log_probs,
        finish_reason=row.finish_reason,
        score=row.score,
        reward=row.reward,
        prefix_length=row.prefix_length,
        step=row.step,
        path_id=row.id,
        parent_id=row.parent_id,
        slot=row.slot,
    )


def fields(value: Question | Visit | StepRecord) -> dict[str, Any]:
    """The columns of a question, a visit or a record."""
    return {name: getattr(value, name) for name in value.__slots__}


def storable(text: str) -> str:
    """Text as every database takes it: without NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def visit_of(row: Read) -> Visit:
    """The visit of a row. Raises ``CodecError`` when it is damaged."""
    check(row, VisitRow)
    return Visit(**{name: getattr(row, name) for name in Visit.__slots__})


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no NaN."""
    return {name: float(v) if math.isfinite(v) else None for name, v in metrics.items()}


def with_nan(metrics: dict[str, float | None]) -> dict[str, float]:
    """Inverse of ``finite``."""
    return {name: math.nan if v is None else v for name, v in metrics.items()}


def check_path(row: PathRow) -> None:
    """Raises ``CodecError`` when a path is not what was stored; faster than ``path_of``, and as sure."""
    check(row, PathRow)
    try:
        check_bytes(row.token_ids)
        if row.log_probs is not None:
            check_bytes(row.log_probs)
    except CodecError as error:
        raise CodecError(f"{name_of(row, PathRow)} is damaged ({error})") from error


def question_of(row: QuestionRow) -> Question:
    """The question of a row. Raises ``CodecError`` when it is damaged."""
    check(row, QuestionRow)
    return Question(**{name: getattr(row, name) for name in Question.__slots__})


def record_of(row: StepRow) -> StepRecord:
    """The record of a row. Raises ``CodecError`` when it is damaged."""
    check(row, StepRow)
    return StepRecord(row.step, row.episode, row.consumed, with_nan(row.metrics))


def evaluation_of(row: EvaluationRow) -> tuple[int, dict[str, float]]:
    """(step, held-out figures) of a row. Raises ``CodecError`` when it is damaged."""
    check(row, EvaluationRow)
    return row.step, with_nan(row.metrics)


def check(row: Read, table: type[Base]) -> None:
    """Raises ``CodecError`` when the row of ``table`` is not what was stored."""
    values: Any = row._mapping if isinstance(row, sqlalchemy.Row) else vars(row)
    if checksum_of(table, values) != row.checksum:
        raise CodecError(f"{name_of(row, table)} is damaged (its checksum differs)")


def name_of(row: Read, table: type[Base]) -> str:
    """What a message calls a row of ``table``."""
    match table.__name__:
        case PathRow.__name__:
            return f"path {row.id} of question {row.question_id} (step {row.step})"
        case VisitRow.__name__:
            return f"the visit of question {row.question_id} at step {row.step}"
        case StepRow.__name__:
            return f"the record of step {row.step}"
        case EvaluationRow.__name__:
            return f"the evaluation of step {row.step}"
        case QuestionRow.__name__:
            return f"question {row.question_id}"
        case RunRow.__name__:
            return f"the entry {row.key!r} about the run"
    raise TypeError(f"{table.__name__} is no table of a path cache")


def insert_rows(session: Session, table: type[Any], rows: list[dict[str, Any]]) -> None:
    """Add ``rows`` of columns, all but their checksums, to a table; an empty list adds nothing."""
    # An insert without rows would be one row of defaults.
    for start in range(0, len(rows), CHUNK):
        chunk = [row | {"checksum": checksum_of(table, row)} for row in rows[start : start + CHUNK]]
        session.execute(insert(table), chunk)


def replace_row(session: Session, table: type[Any], **columns: Any) -> None:
    """Add a row, or put it in the place of the one with its key."""
    session.merge(table(**columns, checksum=checksum_of(table, columns)))


def run_value(session: Session, key: str) -> str | None:
    """An entry about the run. Raises ``CodecError`` when it is damaged."""
    row = session.get(RunRow, key)
    if row is None:
        return None
    check(row, RunRow)
    return row.value


def next_path_id(session: Session) -> int:
    """Ids follow each other without regard to rows that were taken back: a repeated step repeats its ids."""
    return (session.scalar(select(func.max(PathRow.id))) or 0) + 1


def latest_step(session: Session) -> int:
    """The newest committed step; 0 when only the initial cache is complete, -1 before that."""
    newest = session.scalar(select(func.max(StepRow.step)))
    if newest is not None:
        return int(newest)
    return 0 if run_value(session, INITIALISED) is not None else -1


def holds_nothing(session: Session) -> bool:
    """Made by a command that ended before it sampled anything, and open to any run."""
    return latest_step(session) == -1 and run_value(session, INITIAL_TOKENS) is None


def kept_from(session: Session) -> int | None:
    """The oldest step at which the cache can be read; None unless it was pruned."""
    value = run_value(session, KEPT_FROM)
    return int(value) if value is not None else None


def newest(session: Session, table: type[Row], question_ids: Iterable[str], step: int | None) -> Iterator[Read]:
    """For each question the row with the largest step <= ``step``: the definition of the cache at a step."""
    ids = list(dict.fromkeys(question_ids))
    for start in range(0, len(ids), CHUNK):
        query = newest_query(table, step, ids[start : start + CHUNK])
        yield from session.execute(query.with_only_columns(*table.__table__.columns)).all()


def newest_query(table: type[Row], step: int | None, ids: list[str] | None = None) -> Select[Any]:
    """The same as one query; of all questions without ``ids``."""
    candidates: list[Any] = [] if ids is None else [table.question_id.in_(ids)]
    if step is not None:
        candidates.append(table.step <= step)
    slot: list[Any] = [table.slot == OWN] if issubclass(table, PathRow) else []
    largest = (
        select(table.question_id, func.max(table.step).label("step"))
        .where(*candidates, *slot)
        .group_by(table.question_id)
        .subquery()
    )
    same = and_(table.question_id == largest.c.question_id, table.step == largest.c.step)
    return select(table).join(largest, same).where(*slot)


def newest_in_slots(ids: list[str], step: int | None) -> Select[Any]:
    """The path with the largest step <= ``step`` in every slot of the questions ``ids``."""
    largest = (
        select(PathRow.question_id, PathRow.slot, func.max(PathRow.step).label("step"))
        .where(PathRow.question_id.in_(ids), *([] if step is None else [PathRow.step <= step]))
        .group_by(PathRow.question_id, PathRow.slot)
        .subquery()
    )
    place = and_(PathRow.question_id == largest.c.question_id, PathRow.slot == largest.c.slot)
    return select(PathRow).join(largest, and_(place, PathRow.step == largest.c.step)).order_by(PathRow.slot)
