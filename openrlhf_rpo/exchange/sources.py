"""The sources of an imported initial cache, by the form of ``--rpo.init.source``:

runs/a/checkpoints            the cache of another run (also a database file or URL)
runs/a/checkpoints@40         the same at step 40
paths.parquet, paths.jsonl    paths written by ``openrlhf-rpo cache export``
data.jsonl:solution           worked solutions in a column of a data set file
"""

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path as File
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.matching import QuestionIndex, question_text
from openrlhf_rpo.exchange.portable import SCHEMA, PortablePath, from_row, need_text
from openrlhf_rpo.exchange.text import own_tokenizer, path_text, vocabulary
from openrlhf_rpo.run.files import CACHE_FILE, tokenizer_fingerprint
from openrlhf_rpo.tables import SUFFIXES, column_names, read_rows
from openrlhf_rpo.types import Question

_OTHER_TOKENIZER = "its paths have another tokenizer, and {why}. Export them with their text: openrlhf-rpo cache export"


class Source(ABC):
    """Paths to import, of any questions. ``str()`` names the source in messages."""

    @abstractmethod
    def paths(self, tokenizer: str) -> Iterator[PortablePath]:
        """Every path, with text if its tokenizer has another fingerprint than ``tokenizer``.

        Raises ExchangeError, for a damaged cache CacheError.
        """

    def checked(self, tokenizer: str) -> Iterator[PortablePath]:
        """The same, but perhaps without the text. Raises whatever ``paths`` would."""
        return self.paths(tokenizer)


class DatabaseSource(Source):
    """The path cache of another run, which may still be writing, at ``step`` (None: the newest)."""

    def __init__(self, url: str, step: int | None) -> None:
        self.url, self.step = url, step

    def __str__(self) -> str:
        return self.url + ("" if self.step is None else f"@{self.step}")

    def paths(self, tokenizer: str) -> Iterator[PortablePath]:
        return self._paths(tokenizer, with_text=True)

    def checked(self, tokenizer: str) -> Iterator[PortablePath]:
        return self._paths(tokenizer, with_text=False)

    def _paths(self, tokenizer: str, with_text: bool) -> Iterator[PortablePath]:
        with PathCache.open_to_read(self.url) as cache:
            self._check(cache)
            known, theirs = cache.questions(), cache.fingerprints.get("tokenizer")
            decode = None if theirs == tokenizer else self._tokenizer(cache)
            for path in cache.iter_paths(self.step):
                yield PortablePath(
                    question_id=path.question_id,
                    **_asked(known.get(path.question_id)),
                    text=None if decode is None or not with_text else path_text(path.token_ids, decode),
                    token_ids=path.token_ids,
                    log_probs=path.log_probs,
                    finish_reason=path.finish_reason,
                    score=path.score,
                    reward=path.reward,
                    tokenizer=theirs,
                    where=f"{self}, question {path.question_id}" + (f", slot {path.slot}" if path.slot else ""),
                )

    def _check(self, cache: PathCache) -> None:
        if self.step is not None and self.step > cache.latest_step:
            raise ExchangeError(f"{self.url} ends at step {cache.latest_step}: there is no step {self.step}")

    def _tokenizer(self, cache: PathCache) -> Any:
        if cache.model is None:
            raise ExchangeError(f"{self}: " + _OTHER_TOKENIZER.format(why="it does not say which"))
        try:
            return own_tokenizer(cache.model, cache.fingerprints.get("tokenizer"), offline=True)
        except ExchangeError as error:
            raise ExchangeError(f"{self}: " + _OTHER_TOKENIZER.format(why=error)) from error


def _asked(question: Question | None) -> dict[str, str]:
    return {} if question is None else {"question": question.text, "label": question.label}


class ExportSource(Source):
    """A file written by ``openrlhf-rpo cache export``, or one with some of its columns."""

    def __init__(self, file: File) -> None:
        self.file = file
        columns = column_names(file, ("token_ids", "text"))
        if not {"token_ids", "text"} & set(columns):
            raise ExchangeError(
                f"{file} has no column token_ids or text, so it holds no exported paths. Its columns are "
                f"{', '.join(columns)}: name one that holds worked solutions as {file}:COLUMN"
            )

    def __str__(self) -> str:
        return str(self.file)

    def paths(self, tokenizer: str) -> Iterator[PortablePath]:
        for number, row in enumerate(read_rows(self.file, SCHEMA.names), 1):
            where = f"{self.file}, row {number}"
            path = from_row(row, where)
            if path.text is None and not path.is_of(tokenizer):
                raise ExchangeError(f"{where}: {_unusable(path)}")
            yield path


def _unusable(path: PortablePath) -> str:
    """Why a path without text cannot be imported."""
    if path.token_ids is None:
        return "it has neither text nor token_ids, so it holds no path"
    if path.tokenizer is None:
        return (
            "it has token_ids, but neither text nor tokenizer, so nobody knows what they mean. Add its text, or in the "
            "column tokenizer the fingerprint of theirs, which openrlhf-rpo cache info shows"
        )
    return _OTHER_TOKENIZER.format(why="they have no text") + " --tokenizer MODEL"


class SolutionsSource(Source):
    """Worked solutions in a column of a data set file. The column ``label_key`` may be missing."""

    def __init__(self, file: File, column: str, input_key: str, label_key: str | None) -> None:
        self.file, self.column, self.input_key = file, column, input_key
        columns = column_names(file, [name for name in (column, input_key, label_key) if name])
        for name in (column, input_key):
            if name not in columns:
                raise ExchangeError(f"{file} has no column {name!r}; its columns are {', '.join(columns)}")
        self.label_key = label_key if label_key in columns else None

    def __str__(self) -> str:
        return f"{self.file}:{self.column}"

    def paths(self, tokenizer: str) -> Iterator[PortablePath]:
        columns = [name for name in (self.column, self.input_key, self.label_key) if name is not None]
        for number, row in enumerate(read_rows(self.file, columns), 1):
            where = f"{self.file}, row {number}"
            label = None if self.label_key is None else row.get(self.label_key)
            label = None if label is None else str(label)
            question, solution = question_text(row.get(self.input_key)), need_text(row, self.column, where)
            yield PortablePath(question=question, label=label, text=solution or "", where=where)


def database_url(text: str) -> str:
    """The URL of the cache at a URL, in a database file, or in a folder that contains ``rpo_cache.db``."""
    if "://" in text:
        return text
    file = os.path.join(text, CACHE_FILE) if os.path.isdir(text) else text
    return f"sqlite:///{os.path.abspath(file)}"


def parse_source(text: str, input_key: str, label_key: str | None) -> Source:
    """The source that ``text`` names; the keys are for worked solutions. Raises ExchangeError."""
    name, _, column = text.rpartition(":")
    if name.endswith(SUFFIXES) and "/" not in column:
        return SolutionsSource(_existing(name), column, input_key, label_key)
    if text.endswith(SUFFIXES):
        return ExportSource(_existing(text))
    at_step = None if os.path.exists(text) else re.fullmatch(r"(.+)@(\d+)", text)
    place, step = (at_step[1], int(at_step[2])) if at_step else (text, None)
    if "://" not in place and not os.path.exists(place):
        if os.path.isfile(name):  # such as data.csv:solution
            raise ExchangeError(f"{text}: worked solutions are read from {', '.join(SUFFIXES)} files: convert {name}")
        raise ExchangeError(f"there is no file or folder {place}")
    return DatabaseSource(database_url(place), step)


def import_source(args: SimpleNamespace) -> Source:
    """The source that ``--rpo.init.source`` names. Raises ExchangeError."""
    return parse_source(args.rpo.init.source, args.data.input_key, args.data.label_key)


def check_source(source: Source, questions: Sequence[Question], tokenizer: Any) -> str:
    """Read a source before an engine starts and describe it in a line. Raises ExchangeError if any path is unusable.

    ``tokenizer`` is the run's. Scores, and thus which paths are stored, are known only later.
    """
    index, own = QuestionIndex(questions), tokenizer_fingerprint(tokenizer)
    size, of = vocabulary(tokenizer), Counter[str]()
    for path in source.checked(own):
        of["read"] += 1
        if path.is_of(own):
            path.need_known(size)
        if index.find(path) is not None:
            of["matched"] += 1
            of["ids"] += path.is_of(own)
            of["log-probs"] += path.is_of(own) and path.log_probs is not None
    if not of["matched"]:
        raise ExchangeError(
            f"{source}: none of its {of['read']:,} paths belongs to a question of this run. They are matched by "
            "question id, then by the question's text and its label"
        )
    how = _taken(of["matched"], of["ids"], of["log-probs"])
    return f"Initial cache from {source}: {of['matched']:,} of {of['read']:,} paths are of this run's questions, {how}"


def _taken(paths: int, with_ids: int, with_log_probs: int) -> str:
    """How ``paths`` are imported, of which so many have the run's token ids, and so many log-probs of these."""
    if with_log_probs == paths:
        return "ids and log-probs as they are"
    anew = "made anew from their text, without log-probs"
    if not with_ids:
        return anew
    others = "" if with_ids == paths else f", the others {anew}"
    return f"ids of {with_ids:,} as they are, {with_log_probs:,} of them with log-probs{others}"


def _existing(name: str) -> File:
    if not os.path.isfile(name):
        raise ExchangeError(f"there is no file {name}")
    return File(name)
