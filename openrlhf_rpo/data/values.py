"""Which values are questions and labels; the same for training, evaluation and ``openrlhf-rpo data``."""

import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

LONGEST = 1_000_000  # characters of a question: tokenizing more takes seconds, and no model reads it
_NO_LABEL = ("", "n/a", "na", "nan", "none", "null")


def not_a_question(value: Any) -> str | None:
    """Why a value cannot be a question, or None."""
    if isinstance(value, list) and value and all(isinstance(turn, dict) and "content" in turn for turn in value):
        return "a list of chat messages"
    if not isinstance(value, str):
        return "which is not text"
    if not value.strip():
        return "a blank text"
    if "\0" in value:
        return "a text with a NUL character"
    return f"a text of {len(value):,} characters; at most {LONGEST:,} are read" if len(value) > LONGEST else None


def is_label(value: Any) -> bool:
    """Whether a label is a finite number, a date or a meaningful text."""
    if isinstance(value, str):
        return value.strip().lower() not in _NO_LABEL and "\0" not in value and len(value) <= LONGEST
    return isinstance(value, int | date | time) or (isinstance(value, float | Decimal) and math.isfinite(value))


def as_text(value: Any) -> str:
    """A label as text. A number has no exponent, because 1e-05 may also mean e - 5; a date is in ISO form."""
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return format(Decimal(str(value)), "f")
    if isinstance(value, datetime) and value.timetz() == time():
        value = value.date()  # JSON readers take "2020-01-01" for a date with a time of 0
    return value.isoformat() if isinstance(value, date | time) else str(value)
