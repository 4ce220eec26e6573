"""Matching imported paths with a run's questions.

First by question id, a hash of the rendered prompt and the label. If ids differ because templates do, by the data set's
text and the label, or by a unique text alone if the source has no labels.
"""

import contextlib
import re
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any

from openrlhf_rpo.exchange.portable import PortablePath
from openrlhf_rpo.types import Question

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d{1,4})?")


class QuestionIndex:
    """A run's questions by id, by text and label, and by text."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._by_id: dict[str, Question] = {}
        self._by_label: dict[tuple[str, str | Decimal | datetime], list[Question]] = {}
        self._by_text: dict[str, list[Question]] = {}
        for question in questions:
            self._by_id[question.question_id] = question
            for text in {question.text, question.prompt}:
                self._by_label.setdefault((text, _same(question.label)), []).append(question)
                self._by_text.setdefault(text, []).append(question)

    def find(self, path: PortablePath) -> Question | None:
        """The question of ``path``, or None if it is unknown or ambiguous."""
        if path.question_id is not None and path.question_id in self._by_id:
            return self._by_id[path.question_id]
        if path.question is None:
            return None
        if not path.label:  # a run without --data.label_key stores ""
            found = self._by_text.get(path.question, [])
        else:
            found = self._by_label.get((path.question, _same(path.label)), [])
        return found[0] if len(found) == 1 else None


def _same(label: str) -> str | Decimal | datetime:
    """A number or date by its value: ``datasets`` reads 5 as 5.0 in a column that also has fractions, and gives JSON dates
    a time."""
    if _NUMBER.fullmatch(label):
        return Decimal(label)
    with contextlib.suppress(ValueError):  # no date
        return datetime.fromisoformat(label)
    return label


def question_text(value: Any) -> str:
    """A data set's question as text; for a chat, the contents of its messages, one per line."""
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return "\n".join(str(message.get("content")) for message in value)
    return str(value)
