"""Conversion between rows and ``types``, and the queries for the cache at a step."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import sqlalchemy
from sqlalchemy import Select, and_, func, insert, select, type_coerce
from sqlalchemy.orm import Session

from openrlhf_rpo.cache.codec import (
    CodecError,
    check_bytes,
    decode_log_probs,
    decode_token_ids,
    encode_log_probs,
    encode_token_ids,
)
from openrlhf_rpo.cache.columns import is_json, parts_of, parts_text, shown, whole, wrong_parts
from openrlhf_rpo.cache.models import (
    Base,
    EvaluationRow,
    PathRow,
    QuestionRow,
    RunRow,
    StepRow,
    UnfinishedRow,
    VisitRow,
    checksum_of,
)
from openrlhf_rpo.types import OWN, Path, Question, StepRecord, Visit

# Bound variables per query: below the limit of every database.
CHUNK = 500
FINGERPRINT = "fingerprint."
INITIALISED = "initialised"
INITIAL_TOKENS = "initial_tokens"
INITIAL_REACHED = "initial_reached"
OPTION = "option."
KEPT_FROM = "kept_from"
KEPT_STEPS = "kept_steps"
MODEL = "model"
Row = TypeVar("Row", PathRow, VisitRow)
# An ORM object or, where a step reads it, a plain row, in a quarter of the time.
Read: TypeAlias = Any
# The columns that have the values of a path's fields.
_OF_PATH = ("question_id", "slot", "step", "finish_reason", "score", "reward", "prefix_length", "parent_id")
_NOT_STORED = "prompt_ids"  # a question's: the tokenizer can recompute them


def chunks(question_ids: Iterable[str], size: int = CHUNK) -> Iterator[list[str]]:
    """The ids, each once and in order, in lists of at most ``size``."""
    ids = list(dict.fromkeys(question_ids))
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def path_values(path: Path, step: int) -> dict[str, Any]:
    """The columns of a path written by ``step``. Raises ValueError if it is invalid."""
    if path.step != step:
        raise ValueError(f"the path of question {path.question_id} is of step {path.step}, not of step {step}")
    if step == 0 and (path.parent_id is not None or path.prefix_length):
        raise ValueError(f"the initial path of question {path.question_id} has a parent or a prefix")
    if not (math.isfinite(path.score) and math.isfinite(path.reward)):
        raise ValueError(f"the path of question {path.question_id} has score {path.score} and reward {path.reward}")
    if path.log_probs is not None and len(path.log_probs) != len(path):
        raise ValueError(
            f"the path of question {path.question_id} has {len(path)} tokens and {len(path.log_probs)} log-probs"
        )
    try:
        token_ids = encode_token_ids(path.token_ids)
        log_probs = encode_log_probs(path.log_probs) if path.log_probs is not None else None
        parts = parts_text(path.parts, len(path))
    except ValueError as error:
        raise ValueError(f"the path of question {path.question_id} cannot be stored: {error}") from error
    stored = {"token_ids": token_ids, "log_probs": log_probs, "n_tokens": len(path), "parts": parts}
    numbers = {"score": float(path.score), "reward": float(path.reward)}
    return {name: getattr(path, name) for name in _OF_PATH} | numbers | stored


def path_of(row: Read, with_log_probs: bool = True) -> Path:
    """The path of a row. Raises ``CodecError`` when it is damaged."""
    check(row, PathRow)
    try:
        token_ids = decode_token_ids(row.token_ids)
        log_probs = decode_log_probs(row.log_probs) if row.log_probs is not None and with_log_probs else None
        if len(token_ids) != row.n_tokens or (log_probs is not None and len(log_probs) != row.n_tokens):
            raise CodecError("its length differs from its row's")
    except CodecError as error:
        raise CodecError(f"{name_of(row, PathRow)} is damaged ({error})") from error
    values = {name: getattr(row, name) for name in _OF_PATH}
    return Path(**values, token_ids=token_ids, log_probs=log_probs, path_id=row.id, parts=parts_of(row.parts))


def fields(value: Question | Visit | StepRecord) -> dict[str, Any]:
    """The columns of a question, visit or record."""
    return {name: getattr(value, name) for name in value.__slots__ if name != _NOT_STORED}


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which databases refuse."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def visit_of(row: Read) -> Visit:
    """The visit of a row. Raises ``CodecError`` when it is damaged."""
    check(row, VisitRow)
    return Visit(**{name: getattr(row, name) for name in Visit.__slots__})


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """Metrics for JSON, which has no NaN."""
    return {name: float(v) if math.isfinite(v) else None for name, v in metrics.items()}


def with_nan(metrics: dict[str, float | None]) -> dict[str, float]:
    """Inverse of ``finite``."""
    return {name: math.nan if v is None else v for name, v in metrics.items()}


def check_encoded(row: Read, table: type[Base], columns: Sequence[str]) -> None:
    """``check``, plus the checksums of encoded ``columns``: as reliable as decoding, and faster."""
    check(row, table)
    try:
        for encoded in (getattr(row, name) for name in columns):
            if encoded is not None:
                check_bytes(encoded)
    except CodecError as error:
        raise CodecError(f"{name_of(row, table)} is damaged ({error})") from error


def question_of(row: QuestionRow) -> Question:
    """The question of a row. Raises ``CodecError`` when it is damaged."""
    check(row, QuestionRow)
    return Question(**{name: getattr(row, name) for name in Question.__slots__ if name != _NOT_STORED})


def record_of(row: StepRow) -> StepRecord:
    """The record of a row. Raises ``CodecError`` when it is damaged."""
    check(row, StepRow)
    return StepRecord(row.step, row.episode, row.consumed, with_nan(row.metrics))


def evaluation_of(row: EvaluationRow) -> tuple[int, dict[str, float]]:
    """(step, evaluation metrics) of a row. Raises ``CodecError`` when it is damaged."""
    check(row, EvaluationRow)
    return row.step, with_nan(row.metrics)


def check(row: Read, table: type[Base]) -> None:
    """Raise ``CodecError`` unless the checksum of a row of ``table`` matches and its values are consistent."""
    values: Any = row._mapping if isinstance(row, sqlalchemy.Row) else vars(row)
    if checksum_of(table, values) != row.checksum:
        raise CodecError(f"{name_of(row, table)} is damaged (its checksum differs)")
    if what := _IMPOSSIBLE[table](row):
        raise CodecError(f"{name_of(row, table)} is damaged ({what})")


def _impossible_path(row: Read) -> str | None:
    """A parent has a smaller id than its children, so no lineage is a cycle."""
    if row.prefix_length > row.n_tokens:
        return f"prefix_length {row.prefix_length} of {row.n_tokens} tokens"
    if row.parent_id is not None and (row.parent_id >= row.id or row.step == 0):
        return f"parent_id {row.parent_id}, which is no earlier path"
    return wrong_parts(parts_of(row.parts), row.n_tokens)


def _impossible_sample(row: Read) -> str | None:
    """The parts are checked where the tokens are decoded."""
    if row.due <= row.step:
        return f"due {row.due}, which is no later step"
    return f"prefix_length {row.prefix_length} of no path" if row.prefix_length and row.path_id is None else None


def _impossible_visit(row: Read) -> str | None:
    return f"n_rewarded {row.n_rewarded} of {row.n_samples} samples" if row.n_rewarded > row.n_samples else None


def _impossible_entry(row: Read) -> str | None:
    form = _FORMS.get(row.key)
    if form is not None and not re.fullmatch(form, row.value, re.ASCII):
        return f"its value is {shown(row.value)}"
    if row.key.startswith(OPTION) and not is_json(row.value):
        return f"its value is {shown(row.value)}, not JSON"
    return None


_FORMS = {
    INITIAL_TOKENS: r"\d{1,15}",
    INITIAL_REACHED: r"\d{1,9}:\d{1,9}",
    KEPT_FROM: r"\d{1,9}",
    KEPT_STEPS: r"(\d{1,9}( \d{1,9})*)?",
    # The options that a report calculates with.
    **dict.fromkeys((f"{OPTION}train.num_episodes", f"{OPTION}rollout.batch_size"), r"[1-9]\d{0,8}"),
}
_IMPOSSIBLE: dict[type[Base], Callable[[Read], str | None]] = {
    PathRow: _impossible_path,
    VisitRow: _impossible_visit,
    UnfinishedRow: _impossible_sample,
    RunRow: _impossible_entry,
    **dict.fromkeys((QuestionRow, StepRow, EvaluationRow), lambda row: None),
}
"""Contradictions between values that are each valid."""


def name_of(row: Read, table: type[Base]) -> str:
    """The name of a row of ``table`` in messages."""
    return _NAMES[table].format(row=row)


_NAMES: dict[type[Base], str] = {
    PathRow: "path {row.id} of question {row.question_id:.80} (step {row.step})",
    VisitRow: "the visit of question {row.question_id:.80} at step {row.step}",
    UnfinishedRow: "unfinished sample {row.number} of question {row.question_id!s:.80} at step {row.step}",
    StepRow: "the record of step {row.step}",
    EvaluationRow: "the evaluation of step {row.step}",
    QuestionRow: "question {row.question_id:.80}",
    RunRow: "the entry {row.key!r:.80} about the run",
}


def insert_rows(session: Session, table: type[Any], rows: list[dict[str, Any]]) -> None:
    """Insert ``rows``, given without checksums. An empty list inserts nothing, where SQLAlchemy would add a default row."""
    for start in range(0, len(rows), CHUNK):
        chunk = [row | {"checksum": checksum_of(table, row)} for row in rows[start : start + CHUNK]]
        session.execute(insert(table), chunk)


def replace_row(session: Session, table: type[Any], **columns: Any) -> None:
    """Insert a row or replace the one with its key."""
    session.merge(table(**columns, checksum=checksum_of(table, columns)))


def run_value(session: Session, key: str) -> str | None:
    """A value of the table ``runs``, or None. Raises ``CodecError`` when it is damaged."""
    row = session.get(RunRow, key)
    if row is None:
        return None
    check(row, RunRow)
    return row.value


_NEWEST = whole(nullable=True)  # once: SQLAlchemy caches statements by type


def next_path_id(session: Session) -> int:
    """The largest stored id + 1, so that a step repeated after a rollback assigns the same ids."""
    return (session.scalar(select(type_coerce(func.max(PathRow.id), _NEWEST))) or 0) + 1


def latest_step(session: Session) -> int:
    """The newest committed step: 0 when only the initial cache is complete, -1 before that."""
    newest = session.scalar(select(type_coerce(func.max(StepRow.step), _NEWEST)))
    if newest is not None:
        return int(newest)
    return 0 if run_value(session, INITIALISED) is not None else -1


def last_visits(session: Session) -> dict[str, int]:
    """The step of each question's newest visit; reads no visit."""
    query = select(VisitRow.question_id, func.max(VisitRow.step)).group_by(VisitRow.question_id)
    return {question_id: step for question_id, step in session.execute(query)}


def holds_nothing(session: Session) -> bool:
    """Whether the command that created the cache ended before sampling anything."""
    return latest_step(session) == -1 and run_value(session, INITIAL_TOKENS) is None


def kept_from(session: Session) -> int | None:
    """The first step from which all can be read; None unless the cache was pruned."""
    value = run_value(session, KEPT_FROM)
    return int(value) if value is not None else None


def kept_steps(session: Session) -> list[int]:
    """The steps before ``kept_from`` that can also be read."""
    return [int(step) for step in (run_value(session, KEPT_STEPS) or "").split()]


def set_kept(session: Session, start: int, steps: Iterable[int]) -> None:
    """Store what ``kept_from`` and ``kept_steps`` return."""
    replace_row(session, RunRow, key=KEPT_FROM, value=str(start))
    replace_row(session, RunRow, key=KEPT_STEPS, value=" ".join(map(str, sorted(steps))))


def newest(session: Session, table: type[Row], question_ids: Iterable[str], step: int | None) -> Iterator[Read]:
    """For each question the row with the largest step <= ``step``, which defines the cache at a step."""
    for ids in chunks(question_ids):
        query = newest_query(table, step, ids)
        yield from session.execute(query.with_only_columns(*table.__table__.columns)).all()


def newest_query(table: type[Row], step: int | None, ids: list[str]) -> Select[Any]:
    """The query of ``newest``."""
    candidates: list[Any] = [table.question_id.in_(ids)]
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
    """The query for the path with the largest step <= ``step`` in every slot of the questions ``ids``."""
    largest = (
        select(PathRow.question_id, PathRow.slot, func.max(PathRow.step).label("step"))
        .where(PathRow.question_id.in_(ids), *([] if step is None else [PathRow.step <= step]))
        .group_by(PathRow.question_id, PathRow.slot)
        .subquery()
    )
    place = and_(PathRow.question_id == largest.c.question_id, PathRow.slot == largest.c.slot)
    return select(PathRow).join(largest, and_(place, PathRow.step == largest.c.step)).order_by(PathRow.slot)
