"""The types of the path cache's columns. Each checks every value read, in every query.

SQLite stores any value in any column, and a database may come from anyone. A value that this package would not have
written raises ``BadValue``, which names neither row nor column (a type knows neither); ``upkeep.damages`` names both.
"""

import json
import math
import re
import reprlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, ColumnElement, DateTime, Dialect, Double, Integer, LargeBinary, String
from sqlalchemy.types import TypeDecorator, TypeEngine

from openrlhf_rpo.types import UNKNOWN, Part

LARGEST = 2**31 - 1
"""The largest integer in a PostgreSQL ``INTEGER`` column."""
_MAX = sys.float_info.max
_DOUBLE = 701  # PostgreSQL's type code, which only readers of numbers ask for
_PART = re.compile(rf"({UNKNOWN}|0|[1-9]\d{{0,9}}):([1-9]\d{{0,9}})", re.ASCII)
_LONGEST_PARTS = 2**20  # characters: 100,000 parts, which no path has
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 40


class BadValue(ValueError):
    """A value that its column cannot hold."""


class Checked(TypeDecorator[Any]):
    """Values of ``kind`` for which ``fits`` holds; ``what`` describes them in messages.

    ``stored``: the type that SQLite's driver returns.
    """

    impl: Any = String  # ``kind`` replaces it
    cache_ok = True

    def __init__(
        self,
        kind: TypeEngine[Any],
        what: str,
        stored: type,
        fits: Callable[[Any], bool] = lambda value: True,
        nullable: bool = False,
    ) -> None:
        super().__init__()
        self.impl = self.kind = kind
        self.what, self.stored, self.fits, self.nullable = what, stored, fits, nullable

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Checks the driver's value *before* converting it: ``bytes(4000000000)`` takes 4 GB."""
        is_float = isinstance(self.kind, Double)  # every driver returns floats as they are
        convert = None if is_float else self.impl_instance.result_processor(dialect, coltype)
        kind = self.stored if dialect.name == "sqlite" else None
        fits, what, nullable = self.fits, self.what, self.nullable

        def read(value: Any) -> Any:
            if value is None and nullable:
                return None
            if value is not None and (kind is None or type(value) is kind):
                try:
                    found = convert(value) if convert is not None else value
                    if fits(found):
                        return found
                except (ValueError, RecursionError):
                    pass  # said below
            raise BadValue(f"holds {shown(value)}, not {what}")

        return read


def column_reader(column: ColumnElement[Any], dialect: Dialect) -> Callable[[Any], Any]:
    """A function that converts the driver's value. Raises ``BadValue``."""
    reader = column.type.dialect_impl(dialect).result_processor(dialect, _DOUBLE)
    assert reader is not None, f"the type of column {column} checks nothing"
    return reader


class _Flag(Boolean):
    """SQLAlchemy takes any integer for true."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], bool]:
        return lambda value: bool((0, 1).index(value))


def shown(value: Any) -> str:
    """A value in a message: the beginning of a long one, the length of bytes."""
    if value is None:
        return "nothing"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return _SHORT.repr(value)


def words() -> Checked:
    """Any text. The driver returns invalid UTF-8 as bytes (``sqlite.sqlite_engine``)."""
    return Checked(String(), "text", str)


def word(*known: str) -> Checked:
    """One of the words ``known``."""
    return Checked(String(), " or ".join(known), str, known.__contains__)


def whole(low: int = 0, high: int = LARGEST, nullable: bool = False) -> Checked:
    """An integer from ``low`` to ``high``."""
    kind = Integer() if high <= LARGEST else BigInteger()
    return Checked(kind, f"a whole number from {low} to {high}", int, lambda value: low <= value <= high, nullable)


def number() -> Checked:
    """A finite number."""
    return Checked(Double(), "a finite number", float, math.isfinite)


def flag() -> Checked:
    """True or false."""
    return Checked(_Flag(), "0 or 1", int)


def encoded(nullable: bool = False) -> Checked:
    """The bytes of ``codec``."""
    return Checked(LargeBinary(), "encoded bytes", bytes, nullable=nullable)


def time() -> Checked:
    """A time in UTC."""
    return Checked(DateTime(timezone=True), "a time", str)


def figures() -> Checked:
    """Name -> finite number or null, as JSON."""
    return Checked(JSON(), "figures by name", str, _are_figures)


def _are_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(v is None or (type(v) in (int, float) and abs(v) <= _MAX) for v in value.values())


def part_list() -> Checked:
    """The ``types.Part``s of a path or response, as text: "12:340 13:20" (version:tokens); "" without any."""
    return Checked(String(), "versions with their tokens", str, _are_parts)


def _are_parts(text: str) -> bool:
    parts_of(text)
    return True


def parts_of(text: str) -> tuple[Part, ...]:
    """The parts in a text. Raises ValueError unless ``parts_text`` could have written it."""
    words = text.split(" ") if 0 < len(text) <= _LONGEST_PARTS else []
    found = [Part(int(match[1]), int(match[2])) for match in map(_PART.fullmatch, words) if match]
    if len(found) != len(words) or bool(found) != bool(text) or any(max(part) > LARGEST for part in found):
        raise ValueError(f"the parts {shown(text)}")
    return tuple(found)


def parts_text(parts: Sequence[Part], n_tokens: int) -> str:
    """The parts of ``n_tokens`` tokens as text. Raises ValueError unless they cover them all or are empty."""
    text = " ".join(f"{version}:{length}" for version, length in parts)
    if what := wrong_parts(parts_of(text), n_tokens):
        raise ValueError(what)
    return text


def wrong_parts(parts: Sequence[Part], n_tokens: int) -> str | None:
    """What is wrong with the parts of ``n_tokens`` tokens."""
    covered = sum(part.n_tokens for part in parts)
    return f"parts of {covered} of {n_tokens} tokens" if parts and covered != n_tokens else None


def is_json(text: str) -> bool:
    """Whether a text is JSON that can be read."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
