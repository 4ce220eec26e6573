"""Maintenance of a cache: verify every row, prune superseded paths."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

from openrlhf_rpo.cache.codec import CodecError
from openrlhf_rpo.cache.models import Base, EvaluationRow, PathRow, QuestionRow, RunRow, StepRow, VisitRow, checksum_of
from openrlhf_rpo.cache.rows import check, check_path, path_of

_BATCH = 200
_READERS: dict[type[Base], Callable[[Any], object]] = {
    PathRow: path_of,
    **{table: partial(check, table=table) for table in (RunRow, QuestionRow, VisitRow, StepRow, EvaluationRow)},
}
Progress = Callable[[int, int], None]


def damages(session: Session, progress: Progress | None = None, *, decode: bool = True) -> list[str]:
    """One sentence per damaged row. Calls ``progress(rows done, rows in all)``.

    Without ``decode`` only the checksums of a path's bytes are verified, which takes a tenth of the time.
    """
    readers = _READERS | ({} if decode else {PathRow: check_path})
    total = sum(session.scalar(select(func.count()).select_from(table)) or 0 for table in _READERS)
    found: list[str] = []
    done = 0
    for table, read in readers.items():
        try:
            for row in session.scalars(select(table).execution_options(yield_per=_BATCH)):
                done += 1
                if progress is not None and (done % _BATCH == 0 or done == total):
                    progress(done, total)
                try:
                    read(row)
                except CodecError as error:
                    found.append(str(error))
                session.expunge(row)
        except (DBAPIError, TypeError, ValueError) as error:
            # The driver or a column type cannot convert a value, so the rest of the table cannot be read either.
            found.append(f"table {table.__tablename__} cannot be read completely ({getattr(error, 'orig', error)})")
    return found + _check_references(session)


def _check_references(session: Session) -> list[str]:
    """Impossible parents (missing, of another question, not older), missing steps, and rows beyond the newest step."""
    parent = aliased(PathRow)
    orphans = (
        select(PathRow.id, PathRow.question_id, PathRow.parent_id)
        .join(parent, parent.id == PathRow.parent_id, isouter=True)
        .where(PathRow.parent_id.is_not(None))
        .where(parent.id.is_(None) | (parent.question_id != PathRow.question_id) | (parent.step >= PathRow.step))
        .order_by(PathRow.id)
    )
    found = [
        f"path {row.id} of question {row.question_id} has an impossible parent, path {row.parent_id}"
        for row in session.execute(orphans)
    ]
    count, newest = session.execute(select(func.count(), func.max(StepRow.step)).select_from(StepRow)).one()
    newest = newest or 0
    if count != newest:
        found.append(f"{count} steps are recorded, and the newest is step {newest}")
    for table in (PathRow, VisitRow):
        beyond = session.scalar(select(func.count()).select_from(table).where(table.step > newest)) or 0
        if beyond:
            found.append(f"{beyond} rows of {table.__tablename__} are newer than the newest step, {newest}")
    return found


def prune(session: Session, keep_from: int) -> int:
    """Remove the paths that were superseded by step ``keep_from`` and return their number.

    The cache at every step >= ``keep_from`` stays the same, so rolling back to any of them is still possible. A path
    that loses its parent keeps its prefix length, and lineage ends there. Visits and records stay.
    """
    newer = aliased(PathRow)
    superseded = (
        select(PathRow.id)
        .where(PathRow.step < keep_from)
        .where(
            select(newer.id)
            .where(newer.question_id == PathRow.question_id, newer.slot == PathRow.slot)
            .where(newer.step > PathRow.step, newer.step <= keep_from)
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
