"""Which values are questions and labels; the same for training, evaluation and ``openrlhf-rpo data``."""

import math
from typing import Any

LONGEST = 1_000_000  # characters of a question: tokenizing more takes seconds, and no model reads it
_NO_LABEL = ("", "n/a", "na", "nan", "none", "null")


def not_a_question(value: Any) -> str | None:
    """Why a value cannot be a question; None for a text that says something."""
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
    """Whether a label is a finite number or a text that says something."""
    if isinstance(value, str):
        return value.strip().lower() not in _NO_LABEL and "\0" not in value and len(value) <= LONGEST
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
