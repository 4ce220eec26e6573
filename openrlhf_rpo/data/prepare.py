"""From raw rows to training rows: read, filter, merge, measure, split. Nothing is written."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openrlhf_rpo.data.columns import lone, text
from openrlhf_rpo.data.values import is_label, not_a_question
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.rewards.math import unparsable

NO_QUESTION = "no question"
NO_ANSWER = "no answer"
UNPARSABLE = "label that the math reward cannot parse"
DUPLICATE = "duplicate, merged"
CONTRADICTION = "same question, other answer: the first is kept"
TOO_LONG = "prompt too long"


@dataclass(frozen=True)
class Row:
    """One question; ``number`` is the input row, counted from 1."""

    number: int
    question: str
    answer: str
    solution: str | None = None

    @property
    def key(self) -> str:
        """The question's identity: its text, where runs of white space count as one space."""
        return " ".join(self.question.split())


@dataclass
class Dropped:
    """The dropped rows: reason -> [(row number, what was wrong)]."""

    rows: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, reason: str, number: int, detail: str) -> None:
        self.rows.setdefault(reason, []).append((number, detail))

    def __str__(self) -> str:
        return "; ".join(f"{len(rows)} {reason}" for reason, rows in self.rows.items())


def read_rows(
    rows: Iterable[dict[str, Any]],
    columns: tuple[str, str, str | None],
    extract: Callable[[str], str | None],
    dropped: Dropped,
) -> list[Row]:
    """The kept rows. ``columns``: the question, the answer's source for ``extract``, and the solution."""
    question_column, answer_column, solution_column = columns
    kept = []
    for number, row in enumerate(rows, 1):
        question, source = lone(row[question_column]), text(row[answer_column])
        answer = extract(source) if source else None
        if not_a_question(question):
            dropped.add(NO_QUESTION, number, repr(row[question_column])[:60])
        elif not is_label(answer):
            dropped.add(NO_ANSWER, number, repr(row[answer_column])[-60:])
        else:
            solution = (text(row[solution_column]) or "") if solution_column else None
            kept.append(Row(number, question.strip(), str(answer), solution))
    return kept


def drop_unparsable(rows: Sequence[Row], dropped: Dropped, progress: Callable[[Any], Any] = iter) -> list[Row]:
    """Drop rows whose label the math reward cannot parse, so that no other form of it could match."""
    bad = set(unparsable(progress([row.answer for row in rows])))
    for i in sorted(bad):
        dropped.add(UNPARSABLE, rows[i].number, repr(rows[i].answer[:60]))
    return [row for i, row in enumerate(rows) if i not in bad]


def merge_duplicates(rows: Iterable[Row], dropped: Dropped) -> list[Row]:
    """Keep the first row of each question; later rows with another answer are counted separately."""
    first: dict[str, Row] = {}
    for row in rows:
        kept = first.setdefault(row.key, row)
        if kept is row:
            continue
        if kept.answer == row.answer:
            dropped.add(DUPLICATE, row.number, f"of row {kept.number}")
        else:
            dropped.add(CONTRADICTION, row.number, f"{row.answer[:40]!r}, row {kept.number} says {kept.answer[:40]!r}")
    return list(first.values())


def drop_long(rows: Sequence[Row], lengths: Sequence[int], most: int, dropped: Dropped) -> list[Row]:
    """Drop prompts of more than ``most`` tokens."""
    kept = []
    for row, length in zip(rows, lengths, strict=True):
        if length > most:
            dropped.add(TOO_LONG, row.number, f"{length:,} tokens")
        else:
            kept.append(row)
    return kept


def prompt_lengths(rows: Sequence[Row], tokenizer: Any, chat: bool) -> list[int]:
    """Tokens of each prompt, in the chat template if ``chat``. Raises UsageError when the tokenizer has none."""
    prompts = [row.question for row in rows]
    if chat:
        if not tokenizer.chat_template:
            raise UsageError("--apply-chat-template: this tokenizer has no chat template")
        turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
        prompts = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return [len(ids) for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"]] if prompts else []


# ── Draws by a hash of seed and question, independent of the order and of other rows ──


def _draw(row: Row, seed: int, purpose: str) -> float:
    """Uniform in [0, 1), independent between purposes."""
    digest = hashlib.sha256(f"{purpose}\0{seed}\0{row.key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def hold_out(rows: Iterable[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """(training, held out). A question stays on its side when the data grow or are reordered."""
    training: list[Row] = []
    held_out: list[Row] = []
    for row in rows:
        (held_out if _draw(row, seed, "held out") < share else training).append(row)
    return training, held_out


def sample(rows: Sequence[Row], n: int, seed: int) -> list[Row]:
    """``n`` of the rows, in order; a smaller sample is part of a larger one. Raises UsageError if there are fewer."""
    if n > len(rows):
        raise UsageError(f"--sample {n}: only {len(rows):,} questions are left to draw from")
    drawn = {row.number for row in sorted(rows, key=lambda row: _draw(row, seed, "sample"))[:n]}
    return [row for row in rows if row.number in drawn]
