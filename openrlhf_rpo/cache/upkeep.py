"""Maintenance of a cache: verify every row, prune superseded paths."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from sqlalchemy import ColumnElement, case, delete, func, inspect, or_, select, type_coerce
from sqlalchemy.orm import Session, aliased
from sqlalchemy.types import NullType

from openrlhf_rpo.cache.codec import CodecError
from openrlhf_rpo.cache.columns import BadValue, column_reader, shown
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
from openrlhf_rpo.cache.rows import check, check_encoded, name_of, path_of
from openrlhf_rpo.cache.unfinished import OF_GROUP, damaged_group, impossible_path, response_of

_BATCH = 200
_READERS: dict[type[Base], Callable[[Any], object]] = {
    PathRow: path_of,
    UnfinishedRow: response_of,
    **{table: partial(check, table=table) for table in (RunRow, QuestionRow, VisitRow, StepRow, EvaluationRow)},
}
_CHECKS = {
    PathRow: partial(check_encoded, table=PathRow, columns=("token_ids", "log_probs")),
    UnfinishedRow: partial(check_encoded, table=UnfinishedRow, columns=("token_ids", "log_probs", "prefix_log_probs")),
}
"""Without decoding."""
Progress = Callable[[int, int], None]


def damages(session: Session, progress: Progress | None = None, *, decode: bool = True) -> Iterator[str]:
    """One sentence per damage. Calls ``progress(rows done, rows in all)``.

    Without ``decode`` only the checksums of tokens and log-probs are verified, which takes a tenth of the time.
    """
    readers = _READERS if decode else _READERS | _CHECKS
    total = sum(session.scalar(select(func.count()).select_from(table)) or 0 for table in _READERS)
    done = 0
    for table, read in readers.items():
        for row, found in _checked_rows(session, table, [column.name for column in table.__table__.columns]):
            done += 1
            if progress is not None and (done % _BATCH == 0 or done == total):
                progress(done, total)
            if found:
                yield from found
                continue
            try:
                read(row)
            except CodecError as error:
                yield str(error)
    yield from _check_references(session)
    yield from _check_groups(session)


def bad_values(session: Session) -> Iterator[str]:
    """A sentence for each value that its column cannot hold.

    The database may have an earlier schema, without checksums and with fewer tables and columns.
    """
    schema = inspect(session.connection())
    for table in _READERS:
        if schema.has_table(table.__tablename__):
            known = {column["name"] for column in schema.get_columns(table.__tablename__)}
            names = [column.name for column in table.__table__.columns if column.name in known]
            for _, found in _checked_rows(session, table, names):
                yield from found
    yield from _check_references(session)


def _checked_rows(session: Session, table: type[Base], names: list[str]) -> Iterator[tuple[SimpleNamespace, list[str]]]:
    """Every row, and a sentence for each value that its column cannot hold.

    The rows are read without their columns' types, because a bad value would end the reading.
    """
    columns = table.__table__.columns
    readers = {name: column_reader(columns[name], session.get_bind().dialect) for name in names}
    raw = select(*(type_coerce(columns[name], NullType()).label(name) for name in names))
    for stored in session.execute(raw.execution_options(yield_per=_BATCH)):
        row, bad = SimpleNamespace(**stored._mapping), []
        for name, read in readers.items():
            try:
                setattr(row, name, read(getattr(row, name)))
            except BadValue as error:
                bad.append(f"{name} {error}")
                setattr(row, name, shown(getattr(row, name)))
        yield row, [f"{name_of(row, table)} is damaged ({what})" for what in bad]


def _check_references(session: Session) -> Iterator[str]:
    """Impossible parents (``history.parent_of``), missing steps, and rows beyond the newest step."""
    parent = aliased(PathRow)
    names = (PathRow.id, PathRow.question_id, PathRow.parent_id)
    orphans = (
        select(*(type_coerce(column, NullType()).label(column.name) for column in names))
        .join(parent, parent.id == PathRow.parent_id, isouter=True)
        .where(PathRow.parent_id.is_not(None))
        .where(
            parent.id.is_(None)
            | (parent.question_id != PathRow.question_id)
            | (parent.step >= PathRow.step)
            | (parent.n_tokens < PathRow.prefix_length)
        )
        .order_by(PathRow.id)
    )
    for row in session.execute(orphans):
        yield f"path {row.id} of question {row.question_id} has an impossible parent, path {row.parent_id}"
    count, newest = session.execute(
        select(func.count(), func.coalesce(func.max(type_coerce(StepRow.step, NullType())), 0)).select_from(StepRow)
    ).one()
    if count != newest:
        yield f"{count} steps are recorded, and the newest is step {newest}"
    for table in (PathRow, VisitRow, UnfinishedRow):
        if not inspect(session.connection()).has_table(table.__tablename__):
            continue  # in an earlier schema
        beyond = session.scalar(select(func.count()).select_from(table).where(table.step > newest)) or 0
        if beyond:
            yield f"{beyond} rows of {table.__tablename__} are newer than the newest step, {newest}"


def _check_groups(session: Session) -> Iterator[str]:
    """Unfinished samples that form no group (``unfinished.begun_of``), or continue no path of their question."""
    table = UnfinishedRow
    step, question, number, path = (
        type_coerce(column, NullType()).label(column.key)
        for column in (table.step, table.question_id, table.number, table.path_id)
    )

    def differs(column: Any) -> ColumnElement[bool]:
        filled = func.count(column)
        return or_(func.min(column) != func.max(column), (filled > 0) & (filled < func.count()))

    gaps = (func.min(table.number) > 0) | (func.max(table.number) >= func.count())
    groups = select(step, question).group_by(step, question).having(or_(gaps, *map(differs, OF_GROUP)))
    for row in session.execute(groups.order_by(step, question)):
        yield damaged_group(row)
    elsewhere = (
        select(step, question, number, path)
        .join(PathRow, PathRow.id == table.path_id, isouter=True)
        .where(table.path_id.is_not(None))
        .where(PathRow.id.is_(None) | (PathRow.question_id != table.question_id) | (PathRow.n_tokens < table.prefix_length))
    )
    for sample in session.execute(elsewhere.order_by(step, question, number)):
        yield impossible_path(sample)


def prune(session: Session, keep_from: int, steps: Sequence[int] = ()) -> int:
    """Remove the paths that neither a step >= ``keep_from`` nor one of the earlier ``steps`` reads; return their number.

    The cache at these steps stays the same, so rolling back to any of them is still possible. A path that loses its
    parent keeps its prefix length, and lineage ends there. Visits and records stay; groups unfinished at other
    steps go.
    """
    session.execute(delete(UnfinishedRow).where(UnfinishedRow.step < keep_from, UnfinishedRow.step.not_in(steps)))
    newer = aliased(PathRow)
    # The first kept step since a path was written: no kept step reads the path unless this one does.
    reader = case(*((PathRow.step <= step, step) for step in sorted({*steps, keep_from})))
    superseded = (
        select(PathRow.id)
        .where(PathRow.step < keep_from)
        .where(
            select(newer.id)
            .where(newer.question_id == PathRow.question_id, newer.slot == PathRow.slot)
            .where(newer.step > PathRow.step, newer.step <= reader)
            .exists()
        )
    )
    # Children first: then only surviving children are left to update when their parent goes.
    ids = sorted(session.scalars(superseded), reverse=True)
    for start in range(0, len(ids), _BATCH):
        chunk = ids[start : start + _BATCH]
        for orphan in session.scalars(select(PathRow).where(PathRow.parent_id.in_(chunk), PathRow.id.not_in(chunk))):
            check(orphan, PathRow)
            orphan.parent_id = None
            orphan.checksum = checksum_of(PathRow, vars(orphan))
        session.flush()
        session.expunge_all()
        session.execute(delete(PathRow).where(PathRow.id.in_(chunk)))
    return len(ids)
