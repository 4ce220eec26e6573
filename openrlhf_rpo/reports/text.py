"""The texts of a run: decoded token ids and kept samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_rpo.cache.session import place
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.places import find_tokenizer
from openrlhf_rpo.reports.questions import Decode
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.run.samples import FOLDER, read_samples, sample_files


def decoder(cache: PathCache, model: str | None) -> tuple[Decode, str]:
    """A function from lists of token ids to texts, and an empty note; without a tokenizer to ids, and the reason.

    Raises ExchangeError if ``model`` has another tokenizer.
    """
    tokenizer, note = find_tokenizer(cache, model)
    if tokenizer is None:
        return _as_ids, note

    def decode(lists: list[Sequence[int]]) -> list[str]:
        if not lists:
            return []
        # Without clean-up, the text of a path's head is the head of its text.
        ids = [list(one) for one in lists]
        if tokenizer.is_fast:  # in one batch, twice as fast
            return tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=False)
        return tokenizer.batch_decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return decode, ""


def sample_folder(url: str) -> Path | None:
    """The folder of the samples of a cache's run; None for a database server."""
    file = place(url)[1]
    return None if file is None else file.parent / FOLDER


def missing_samples(url: str, run: Run) -> str:
    """A note if the run has steps and its cache lies neither beside samples nor in --ckpt.path; else empty."""
    folder = sample_folder(url)
    if not run.records or folder and (folder.is_dir() or folder.with_name("writer").exists()):
        return ""
    return (
        f"No samples are shown: if the run kept them (--rpo.log_samples), put {FOLDER} of its --ckpt.path beside "
        "the cache file."
    )


def newest_samples(
    folder: Path | None, until: int, megabytes: int
) -> tuple[dict[str, dict[int, list[dict[str, Any]]]], str]:
    """Question -> step -> samples of the newest steps that fit into ``megabytes`` of text, and a note if others do not."""
    files = [] if folder is None else [(step, file) for step, file in sample_files(folder) if step <= until]
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    left, taken = megabytes * 2**20, 0
    for _, file in reversed(files) if megabytes else ():
        rows = _rows(file)
        left -= sum(len(row["response"]) for row in rows)
        if left < 0:
            break
        for row in rows:
            found.setdefault(row["question_id"], {}).setdefault(row["step"], []).append(row)
        taken += bool(rows)
    note = ""
    if taken < len(files):
        note = f"Samples of the newest {taken:,} of {len(files):,} steps are in this file (--samples-mb {megabytes})."
    return found, note


def samples_of(folder: Path | None, question_id: str, steps: list[int]) -> dict[int, list[dict[str, Any]]]:
    """The kept samples of a question in these steps. Raises ExchangeError for a damaged file."""
    files = {} if folder is None else dict(sample_files(folder))
    return {step: _rows(files[step], question_id) for step in steps if step in files}


def _rows(file: Path, question_id: str | None = None) -> list[dict[str, Any]]:
    """The samples of a step; none if the run, which keeps a limited number of files, dropped them."""
    try:
        return list(read_samples(file, question_id))
    except ExchangeError:
        if file.exists():
            raise
        return []


def _as_ids(lists: list[Sequence[int]]) -> list[str]:
    return [" ".join(map(str, ids)) for ids in lists]
