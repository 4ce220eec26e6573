"""The rows to prepare: local files or data sets on the hub, through the ``datasets`` library."""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openrlhf_rpo.data.files import is_saved, readable
from openrlhf_rpo.errors import UsageError

_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def load(names: Sequence[str], config: str | None, split: str) -> list[Any]:
    """A ``datasets.Dataset`` for each name, with nested fields as dotted columns (``reward_model.ground_truth``).

    A name with a known suffix is a file; any other is a folder or a data set on the hub, read by ``config`` and ``split``. A
    folder of ``save_to_disk`` has no config, and a ``split`` only if it was saved with several.
    Raises UsageError for what is missing, cannot be read, or cannot be fetched.
    """
    return [_load(name, config, split) for name in names]


def is_file(name: str) -> bool:
    """Whether ``name`` has the suffix of a file that ``load`` reads."""
    return _suffix(name) in _BUILDERS


def rows(tables: Sequence[Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of all tables, with only these columns."""
    for table in tables:
        yield from table.select_columns(list(dict.fromkeys(columns)))


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]


def _load(name: str, config: str | None, split: str) -> Any:
    if os.path.isfile(name) and not is_file(name):
        raise UsageError(f"{name}: a data file's name must end in {', '.join(_BUILDERS)}")
    with readable([name], config=config, split=split):
        from datasets import load_dataset

        if is_saved(Path(name)):
            table = _load_saved(name, split)
        else:
            table = _load_file(name) if is_file(name) else load_dataset(name, config, split=split)
        return table.flatten()


def _load_saved(name: str, split: str) -> Any:
    from datasets import Dataset, load_from_disk

    saved = load_from_disk(name)
    if isinstance(saved, Dataset):
        return saved
    if split not in saved:
        raise UsageError(f"{name}: there is no split {split!r}; the splits are {', '.join(saved)}")
    return saved[split]


def _load_file(name: str) -> Any:
    from datasets import Features, Value, load_dataset

    options: dict[str, Any] = {}
    if _suffix(name) == ".csv":  # as text: 007 stays 007, an empty field is not a missing number
        options = {"features": Features({c: Value("string") for c in _header(name)}), "keep_default_na": False}
    return load_dataset(_BUILDERS[_suffix(name)], data_files=name, split="train", **options)


def _header(name: str) -> list[str]:
    """The first row that is not blank, as ``datasets`` takes it; pandas names a column without a name, such as its index."""
    with open(name, encoding="utf-8-sig", newline="") as lines:
        first = next(filter(None, csv.reader(lines)), [])
    return [column or f"Unnamed: {number}" for number, column in enumerate(first)]
