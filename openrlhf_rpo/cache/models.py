"""The tables of the path cache (SQLAlchemy 2 typed ORM), as ``alembic/versions`` creates them.

Steps only add rows: the cache at step t is, for each question, the row with the largest step <= t, so rolling back means
deleting newer rows. The initial cache has step 0. Token ids and log-probs are encoded by ``codec``. Every row has a
checksum of its other columns (``checksum_of``), so that a damaged number is detected like a damaged path.
"""

import functools
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from openrlhf_rpo.cache.columns import encoded, figures, flag, number, part_list, time, whole, word, words

_ASKED = ("turn", "replay", "unfinished", "signal", "unknown")  # the last two: former versions


class Base(DeclarativeBase):
    checksum: Mapped[int] = mapped_column(whole(0, 2**32 - 1), sort_order=99, server_default="0")


class RunRow(Base):
    """A fact about the run: fingerprints, options, model, package version, progress of the initial cache."""

    __tablename__ = "runs"

    key: Mapped[str] = mapped_column(words(), primary_key=True)
    value: Mapped[str] = mapped_column(words())


class QuestionRow(Base):
    """One question of the run (``types.Question``), for people to read; training does not use it."""

    __tablename__ = "questions"

    question_id: Mapped[str] = mapped_column(words(), primary_key=True)
    text: Mapped[str] = mapped_column(words())
    prompt: Mapped[str] = mapped_column(words())
    label: Mapped[str] = mapped_column(words())
    datasource: Mapped[str] = mapped_column(words())


class PathRow(Base):
    """One path of one question in one of its slots; the newest path in a slot is in use."""

    __tablename__ = "paths"
    __table_args__ = (Index("ix_paths_question_slot_step", "question_id", "slot", "step", unique=True),)

    id: Mapped[int] = mapped_column(whole(1), primary_key=True)
    question_id: Mapped[str] = mapped_column(words())
    slot: Mapped[int] = mapped_column(whole(), default=0)
    step: Mapped[int] = mapped_column(whole(), index=True)
    token_ids: Mapped[bytes] = mapped_column(encoded())
    log_probs: Mapped[bytes | None] = mapped_column(encoded(nullable=True))
    n_tokens: Mapped[int] = mapped_column(whole())
    finish_reason: Mapped[str] = mapped_column(word("stop", "length"))
    score: Mapped[float] = mapped_column(number())
    reward: Mapped[float] = mapped_column(number())
    prefix_length: Mapped[int] = mapped_column(whole())
    parent_id: Mapped[int | None] = mapped_column(whole(1, nullable=True), ForeignKey("paths.id"), index=True)
    parts: Mapped[str] = mapped_column(part_list(), server_default="")


class VisitRow(Base):
    """What one step did to one question (``types.Visit``)."""

    __tablename__ = "visits"

    question_id: Mapped[str] = mapped_column(words(), primary_key=True)
    step: Mapped[int] = mapped_column(whole(1), primary_key=True, autoincrement=False, index=True)
    cut: Mapped[int] = mapped_column(whole())
    prefix_length: Mapped[int] = mapped_column(whole())
    shortest_path: Mapped[int] = mapped_column(whole())
    n_samples: Mapped[int] = mapped_column(whole())
    n_rewarded: Mapped[int] = mapped_column(whole())
    outcome: Mapped[str] = mapped_column(words())
    start_bare: Mapped[bool] = mapped_column(flag())
    slot: Mapped[int] = mapped_column(whole(), server_default="0")
    n_tokens: Mapped[int] = mapped_column(whole(), server_default="0")
    asked: Mapped[str] = mapped_column(word(*_ASKED), server_default="unknown")


class UnfinishedRow(Base):
    """One sample (stopped, asked for or finished) of a group that ``step`` leaves to step ``due`` (``types.Begun``).

    ``token_ids``, ``log_probs`` and ``parts`` are of the response so far. The prefix is the head of the path ``path_id``;
    ``prefix_log_probs`` is null if they are the path's own. A group's rows share ``due``, ``asked`` and ``place``,
    its position among the groups of ``step``.
    """

    __tablename__ = "unfinished"

    step: Mapped[int] = mapped_column(whole(1), primary_key=True, autoincrement=False)
    question_id: Mapped[str] = mapped_column(words(), primary_key=True)
    number: Mapped[int] = mapped_column(whole(), primary_key=True, autoincrement=False)
    token_ids: Mapped[bytes] = mapped_column(encoded())
    log_probs: Mapped[bytes] = mapped_column(encoded())
    finish_reason: Mapped[str] = mapped_column(word("stop", "length", "unfinished"))
    prefix_length: Mapped[int] = mapped_column(whole())
    prefix_log_probs: Mapped[bytes | None] = mapped_column(encoded(nullable=True))
    cut: Mapped[int] = mapped_column(whole())
    path_id: Mapped[int | None] = mapped_column(whole(1, nullable=True), ForeignKey("paths.id"), index=True)
    parts: Mapped[str] = mapped_column(part_list(), server_default="")
    due: Mapped[int] = mapped_column(whole(1), server_default="0")
    place: Mapped[int] = mapped_column(whole(), server_default="0")
    asked: Mapped[str] = mapped_column(word(*_ASKED), server_default="unfinished")


class StepRow(Base):
    """One committed step (``types.StepRecord``). Metrics that are not finite are stored as null."""

    __tablename__ = "steps"

    step: Mapped[int] = mapped_column(whole(1), primary_key=True, autoincrement=False)
    episode: Mapped[int] = mapped_column(whole())
    consumed: Mapped[int] = mapped_column(whole())
    metrics: Mapped[dict[str, float | None]] = mapped_column(figures())
    created_at: Mapped[datetime] = mapped_column(time())


class EvaluationRow(Base):
    """Held-out figures of the policy after ``step``; step 0 is the policy that training started from."""

    __tablename__ = "evaluations"

    step: Mapped[int] = mapped_column(whole(), primary_key=True, autoincrement=False)
    metrics: Mapped[dict[str, float | None]] = mapped_column(figures())


def checksum_of(table: type[Base], values: Mapping[str, Any]) -> int:
    """CRC-32 of a row's columns by name, as the migrations compute it; of encoded bytes, only version and checksum."""
    names, take = _columns(table)
    found = [(name, _PLAIN[type(v)](v) if type(v) in _PLAIN else v) for name, v in zip(names, take(values), strict=True)]
    return zlib.crc32(repr(found).encode())


@functools.cache
def _columns(table: type[Base]) -> tuple[list[str], Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
    names = sorted(column.name for column in table.__table__.columns if column.name != "checksum")
    return names, itemgetter(*names)


def in_utc(value: datetime) -> datetime:
    """A stored time with its zone: SQLite returns UTC without one."""
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


_PLAIN: dict[type, Callable[[Any], Any]] = {
    bytes: lambda value: value[:5],
    dict: lambda value: sorted(value.items()),
    datetime: lambda value: in_utc(value).isoformat(),
}
"""How values of some types enter the checksum. An exact type lookup, because a step checks thousands of values."""
