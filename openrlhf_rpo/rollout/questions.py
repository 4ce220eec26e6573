"""The questions of a run: loaded as OpenRLHF loads its prompts, duplicates merged, in a keyed order."""

import hashlib
from collections.abc import Sequence, Set
from types import SimpleNamespace
from typing import Any

from datasets.exceptions import DatasetGenerationError

from openrlhf_rpo.algo.draws import episode_order
from openrlhf_rpo.exchange.matching import question_text
from openrlhf_rpo.types import Question
from openrlhf_rpo.upstream import PromptDataset, UsageError, blending_datasets


def question_id(prompt: str, label: str) -> str:
    """16 hex digits that depend on the question alone, not on its place in the data set."""
    return hashlib.sha256(f"{prompt}\0{label}".encode()).hexdigest()[:16]


def load_questions(args: SimpleNamespace, tokenizer: Any) -> tuple[list[Question], int]:
    """The training questions and how many duplicates were merged. Raises UsageError on data that cannot be used."""
    rows = _load(args, args.data.prompt_dataset, args.data.prompt_probs, args.data.prompt_split, "--data.prompt_dataset")
    questions = _render(args, rows, tokenizer, "--data.prompt_dataset")
    merged = {q.question_id: q for q in questions}
    return list(merged.values()), len(questions) - len(merged)


def load_eval_questions(args: SimpleNamespace, tokenizer: Any) -> list[Question]:
    """The held-out questions of --eval.dataset, in file order; empty when there is none."""
    if not args.eval.dataset:
        return []
    rows = _load(args, args.eval.dataset, None, args.eval.split, "--eval.dataset")
    return _render(args, rows, tokenizer, "--eval.dataset")


def _load(args: SimpleNamespace, names: str, probabilities: str | None, split: str, flag: str) -> Any:
    if not names:
        raise UsageError(f"{flag} is missing: a JSONL, Parquet or CSV file, a folder, or a data set name")
    if probabilities and len(probabilities.split(",")) != len(names.split(",")):
        raise UsageError(f"{flag} {names}: the probabilities {probabilities} must be one for each data set")
    strategy = SimpleNamespace(args=args, print=lambda *_: None, is_rank_0=lambda: False)
    try:
        data = blending_datasets(names, probabilities, strategy, args.train.seed, args.data.max_samples, dataset_split=split)
    except StopIteration:  # how ``datasets`` takes an empty file
        data = []
    except AttributeError as error:  # upstream selects from all splits at once when the named one is not there
        raise UsageError(f"{flag} {names}: there is no split {split!r}") from error
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise UsageError(f"{flag} {names}: cannot be read: {error.__cause__ or error}") from error
    if not len(data):
        raise UsageError(f"{flag} {names}: the data set is empty")
    return data.select(range(min(args.data.max_samples, len(data))))


def _render(args: SimpleNamespace, rows: Any, tokenizer: Any, flag: str) -> list[Question]:
    for key_flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key is not None and key not in rows.column_names:
            raise UsageError(f"{flag}: no column {key!r} ({key_flag}); the columns are {', '.join(rows.column_names)}")
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    try:
        data = PromptDataset(rows, tokenizer, strategy, input_template=args.data.input_template)
    except (ValueError, LookupError) as error:
        which = "apply_chat_template" if args.data.apply_chat_template else "input_template"
        raise UsageError(f"{flag}: --data.{which} does not fit: {error}") from error
    no_text = next((p for p in data.prompts if not isinstance(p, str)), "")
    if no_text != "":
        raise UsageError(f"{flag}: --data.input_key {args.data.input_key} holds {no_text!r}, which is not text")
    texts = map(question_text, rows[args.data.input_key])
    return [
        Question(question_id(prompt, str(label)), prompt, str(label), source, text)
        for prompt, label, source, text in zip(data.prompts, data.labels, data.datasources, texts, strict=True)
    ]


class QuestionStream:
    """The data, episode after episode, each in a keyed order; ``position`` visits have been consumed."""

    def __init__(self, questions: Sequence[Question], seed: int, episodes: int) -> None:
        self.questions = questions
        self.position = 0
        self._seed = seed
        self._episodes = episodes
        self._order: tuple[int, list[int]] = (-1, [])  # an episode and its order

    @property
    def episode(self) -> int:
        """Passes over the data that are complete."""
        return self.position // len(self.questions)

    @property
    def remaining(self) -> int:
        return len(self.questions) * self._episodes - self.position

    def take(self, n: int, exclude: Set[str] = frozenset()) -> list[Question]:
        """The next ``n`` questions, fewer at the end of the data; none twice, and none of ``exclude``.

        A question that comes again within a batch, because the episode turned over, is passed by.
        """
        taken: dict[str, Question] = {}
        while len(taken) < n and self.remaining > 0:
            question = self.questions[self._episode_order()[self.position % len(self.questions)]]
            if question.question_id not in exclude:
                taken.setdefault(question.question_id, question)
            self.position += 1
        return list(taken.values())

    def _episode_order(self) -> list[int]:
        if self._order[0] != self.episode:
            self._order = (self.episode, episode_order(self._seed, self.episode, len(self.questions)))
        return self._order[1]
