"""The questions of a run: loaded like OpenRLHF's prompts, without duplicates, in a seeded order."""

import hashlib
from collections.abc import Sequence, Set
from types import SimpleNamespace
from typing import Any

from jinja2 import TemplateError

from openrlhf_rpo.algo.draws import episode_order
from openrlhf_rpo.data.files import readable
from openrlhf_rpo.data.values import as_text, is_label, not_a_question
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.exchange.matching import question_text
from openrlhf_rpo.types import Question
from openrlhf_rpo.upstream import PromptDataset, blending_datasets


def question_id(prompt: str, label: str) -> str:
    """16 hex digits that identify a question, wherever it is in the data set."""
    return hashlib.sha256(f"{prompt}\0{label}".encode()).hexdigest()[:16]


def load_questions(args: SimpleNamespace, tokenizer: Any) -> tuple[list[Question], int]:
    """The training questions and the number of duplicates dropped. Raises UsageError for unusable data."""
    rows = _load(args, args.data.prompt_dataset, args.data.prompt_split, "--data.prompt_dataset")
    questions = _render(args, rows, tokenizer, f"--data.prompt_dataset {args.data.prompt_dataset}")
    merged = {q.question_id: q for q in questions}
    return list(merged.values()), len(questions) - len(merged)


def load_eval_questions(args: SimpleNamespace, tokenizer: Any) -> tuple[list[Question], int]:
    """The held-out questions of --eval.dataset, in file order, and the number of duplicates dropped; none without one.

    A duplicate would get the same seeds, and so the same answers.
    """
    if not args.eval.dataset:
        return [], 0
    rows = _load(args, args.eval.dataset, args.eval.split, "--eval.dataset")
    questions = _render(args, rows, tokenizer, f"--eval.dataset {args.eval.dataset}")
    merged = {(q.question_id, q.datasource): q for q in questions}
    return list(merged.values()), len(questions) - len(merged)


def _load(args: SimpleNamespace, names: str, split: str, flag: str) -> Any:
    if not names:
        raise UsageError(f"{flag} is missing: a JSONL, Parquet or CSV file, a folder, or a data set name")
    strategy = SimpleNamespace(args=args, print=lambda *_: None, is_rank_0=lambda: False)
    with readable(names.split(","), flag, split=split):
        try:
            data = blending_datasets(names, None, strategy, args.train.seed, args.data.max_samples, dataset_split=split)
        except AttributeError as error:  # upstream keeps the dict of all splits when the named one is missing
            raise UsageError(f"{flag} {names}: there is no split {split!r}") from error
    if not len(data):
        raise UsageError(f"{flag} {names}: the data set is empty")
    return data.select(range(min(args.data.max_samples, len(data))))


def _render(args: SimpleNamespace, rows: Any, tokenizer: Any, where: str) -> list[Question]:
    """``where`` is the option that names the data, with its value."""
    for flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key is not None and key not in rows.column_names:
            raise UsageError(f"{where}: no column {key!r} ({flag}); the columns are {', '.join(rows.column_names)}")
    with readable([], where):  # a text may not be UTF-8
        _need_questions(args, rows[args.data.input_key], where)
        if args.data.label_key is not None:
            _need_labels(rows[args.data.label_key], f"{where}: --data.label_key {args.data.label_key}")
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    try:
        data = PromptDataset(rows, tokenizer, strategy, input_template=args.data.input_template)
    except (ValueError, LookupError, TypeError, TemplateError) as error:
        which = "apply_chat_template" if args.data.apply_chat_template else "input_template"
        raise UsageError(f"{where}: --data.{which} does not fit: {error}") from error
    texts = list(map(question_text, rows[args.data.input_key]))
    if len(set(data.prompts)) == 1 < len(set(texts)):
        raise UsageError(
            f"{where}: --data.apply_chat_template does not fit: every prompt is the same, {data.prompts[0][:80]!r}"
        )
    ids = tokenizer(list(data.prompts), add_special_tokens=False)["input_ids"]
    columns = (data.prompts, map(as_text, data.labels), _sources(data.datasources, where), texts, map(tuple, ids))
    return [Question(question_id(row[0], row[1]), *row) for row in zip(*columns, strict=True)]


def _need_questions(args: SimpleNamespace, values: Sequence[Any], where: str) -> None:
    """Raises UsageError unless every question is a text, or a chat where the chat template is applied."""
    turns = "a list of chat messages"
    chat = args.data.apply_chat_template
    causes = ((row, value, not_a_question(value)) for row, value in enumerate(values, 1))
    bad = [(row, value, cause) for row, value, cause in causes if cause and not (chat and cause == turns)]
    if bad:
        row, value, cause = bad[0]
        held = cause if cause != "which is not text" else f"{str(value)[:80]!r}, {cause}"
        remedy = "Add --data.apply_chat_template" if cause == turns else "Remove these rows; `openrlhf-rpo data` does"
        raise UsageError(
            f"{where}: --data.input_key {args.data.input_key}: {len(bad)} of {len(values)} rows have no question to ask, "
            f"the first is row {row}: {held}. {remedy}"
        )


def _need_labels(labels: Sequence[Any], where: str) -> None:
    """Raises UsageError unless every label is a number or a text that says something."""
    bad = [(row, label) for row, label in enumerate(labels, 1) if not is_label(label)]
    if bad:
        row, label = bad[0]
        raise UsageError(
            f"{where}: {len(bad)} of {len(labels)} rows have no label to compare an answer with, the first is row {row}: "
            f"{str(label)[:80]!r}. Remove these rows; `openrlhf-rpo data` does"
        )


def _sources(values: Sequence[Any], where: str) -> list[str]:
    """The name under which each row's evaluation is logged: its ``datasource``, or "default" where it has none.

    Raises UsageError for a list or an object.
    """
    for row, value in enumerate(values, 1):
        if isinstance(value, list | dict):
            raise UsageError(f"{where}: the column datasource must hold names; row {row} has {str(value)[:80]!r}")
    return ["default" if value is None or value != value else as_text(value) for value in values]  # NaN is not itself


class QuestionStream:
    """All episodes of the data, each in its own seeded order; ``position`` counts the questions consumed.

    ``postponed``: ids of consumed questions that were in flight when it was their turn; they come first.
    """

    def __init__(self, questions: Sequence[Question], seed: int, episodes: int) -> None:
        self.questions = questions
        self.position = 0
        self.postponed: list[str] = []
        self.seed = seed
        self._by_id = {question.question_id: question for question in questions}
        self._episodes = episodes

    @property
    def episode(self) -> int:
        """Complete passes over the data."""
        return self.position // len(self.questions)

    @property
    def remaining(self) -> int:
        return len(self.questions) * self._episodes - self.position

    def has(self, n: int, in_flight: Set[str]) -> bool:
        """Whether the next pass over the data has ``n`` distinct questions that are not in flight."""
        free = set(self.postponed) - in_flight
        for position in range(self.position, self.position + min(self.remaining, len(self.questions))):
            if len(free) >= n:
                break
            free |= {self._at(position).question_id} - in_flight
        return len(free) >= n

    def left(self, taken: Set[str]) -> int:
        """How many questions left in this pass over the data are not ``taken``."""
        end = self.position + min(self.remaining, len(self.questions) - self.position % len(self.questions))
        return sum(self._at(position).question_id not in taken for position in range(self.position, end))

    def take(self, n: int, exclude: Set[str] = frozenset(), in_flight: Set[str] = frozenset()) -> list[Question]:
        """The next ``n`` distinct questions that are not in ``exclude``; fewer at the end of the data.

        A question that would be repeated because a new episode began within the batch is skipped; one that is ``in_flight``
        is postponed.
        """
        taken: dict[str, Question] = {}
        for name in [name for name in dict.fromkeys(self.postponed) if name not in exclude | in_flight][:n]:
            self.postponed.remove(name)
            taken[name] = self._by_id[name]
        while len(taken) < n and self.remaining > 0:
            question = self._at(self.position)
            if question.question_id in in_flight:
                self.postponed.append(question.question_id)
            elif question.question_id not in exclude:
                taken.setdefault(question.question_id, question)
            self.position += 1
        return list(taken.values())

    def _at(self, position: int) -> Question:
        episode, place = divmod(position, len(self.questions))
        return self.questions[episode_order(self.seed, episode, len(self.questions))[place]]
