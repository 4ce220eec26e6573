"""The columns of question and answer: given, or guessed from the names that data sets use."""

import difflib
import math
from collections.abc import Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

from openrlhf_rpo.data.values import as_text
from openrlhf_rpo.errors import UsageError

QUESTION = ("question", "problem", "prompt", "query", "instruction", "input")
ANSWER = (
    "answer",
    "label",
    "final_answer",
    "ground_truth",
    "expected_answer",
    "reward_model.ground_truth",
    "target",
    "solution",
    "output",
)


def choose(flag: str, given: str | None, usual: Sequence[str], columns: Sequence[str]) -> str:
    """The column ``given``, or the one with the first of the ``usual`` names, ignoring case.

    Raises UsageError, with all columns and the nearest one, when there is none.
    """
    listed = f"the columns are {', '.join(columns) or 'none'}"
    if given is not None:
        if given in columns:
            return given
        near = difflib.get_close_matches(given, columns, n=1, cutoff=0.5)
        raise UsageError(
            f"{flag} {given}: there is no such column" + (f"; did you mean {near[0]}?" if near else ";") + f" {listed}"
        )
    by_name = {column.lower(): column for column in reversed(columns)}
    found = next((by_name[name] for name in usual if name in by_name), None)
    if found is None:
        raise UsageError(f"{flag} is missing, and no column has a usual name ({', '.join(usual)}): {listed}")
    return found


def lone(value: Any) -> Any:
    """The item of a list of one; a chat message's content."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value.get("content") if isinstance(value, dict) else value


def text(value: Any) -> str | None:
    """A value, or its only content, as stripped text: 42.0 as 42, 0.00001 without an exponent. None for missing values,
    infinite numbers and longer lists."""
    value = lone(value)
    if isinstance(value, float | Decimal):
        if not math.isfinite(value):
            return None
        value = Decimal(str(value))  # the digits in the file: int(1e23) has others
        value = int(value) if value == int(value) else value
    return as_text(value).strip() if isinstance(value, str | int | float | Decimal | date | time) else None
