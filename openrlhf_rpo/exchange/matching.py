"""Which question of a run an imported path belongs to.

By question id, which is a hash of the rendered prompt and the label; where that differs, because the template does, by
the data set's own text and the label; and by the text alone where the source names no label and the text is one
question's only.
"""

from collections.abc import Iterable
from typing import Any

from openrlhf_rpo.exchange.portable import PortablePath
from openrlhf_rpo.types import Question


class QuestionIndex:
    """The questions of a run, to look up what belongs to them."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._by_id: dict[str, Question] = {}
        self._by_label: dict[tuple[str, str], list[Question]] = {}
        self._by_text: dict[str, list[Question]] = {}
        for question in questions:
            self._by_id[question.question_id] = question
            for text in {question.text, question.prompt}:
                self._by_label.setdefault((text, question.label), []).append(question)
                self._by_text.setdefault(text, []).append(question)

    def find(self, path: PortablePath) -> Question | None:
        """The question of ``path``, or None: unknown here, or one of several with the same text."""
        if path.question_id is not None and path.question_id in self._by_id:
            return self._by_id[path.question_id]
        if path.question is None:
            return None
        if path.label is None:
            found = self._by_text.get(path.question, [])
        else:
            found = self._by_label.get((path.question, path.label), [])
        return found[0] if len(found) == 1 else None


def question_text(value: Any) -> str:
    """A question as the data set has it, as text: of a chat, its messages' contents, a line each."""
    if isinstance(value, list):
        return "\n".join(str(message.get("content")) for message in value)
    return str(value)
