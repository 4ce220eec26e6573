"""The rows to prepare: files on this machine or data sets of the hub, through the ``datasets`` library."""

import csv
import os
from collections.abc import Iterator, Sequence
from typing import Any

from openrlhf_rpo.upstream import UsageError

_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


def load(names: Sequence[str], config: str | None, split: str) -> list[Any]:
    """A ``datasets.Dataset`` for each name, with nested fields as dotted columns (``reward_model.ground_truth``).

    A name with a known suffix is a file, any other one a folder or a data set of the hub, of which ``config`` and
    ``split`` name the part. Raises UsageError for what is missing, cannot be read, or cannot be fetched.
    """
    return [_load_file(name) if _suffix(name) in _BUILDERS else _load_named(name, config, split) for name in names]


def is_file(name: str) -> bool:
    """Whether ``name`` is taken for a file."""
    return _suffix(name) in _BUILDERS


def rows(tables: Sequence[Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of all tables, of these columns alone."""
    for table in tables:
        yield from table.select_columns(list(dict.fromkeys(columns)))


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _load_file(name: str) -> Any:
    from datasets import Features, Value, load_dataset
    from datasets.exceptions import DatasetGenerationError

    if not os.path.isfile(name):
        raise UsageError(f"there is no file {name}")
    options: dict[str, Any] = {}
    try:
        if _suffix(name) == ".csv":  # as text: 007 stays 007, an empty field is not a missing number
            options = {"features": Features({c: Value("string") for c in _header(name)}), "keep_default_na": False}
        return load_dataset(_BUILDERS[_suffix(name)], data_files=name, split="train", **options).flatten()
    except StopIteration as error:  # how ``datasets`` takes an empty file
        raise UsageError(f"{name} is empty") from error
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise UsageError(f"{name} cannot be read: {error.__cause__ or error}") from error


def _header(name: str) -> list[str]:
    with open(name, encoding="utf-8-sig", newline="") as lines:
        return next(csv.reader(lines), [])


def _load_named(name: str, config: str | None, split: str) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    if os.path.isfile(name):
        raise UsageError(f"{name}: the name of a file must end in {', '.join(_BUILDERS)}")
    try:
        return load_dataset(name, config, split=split).flatten()
    except (DatasetNotFoundError, ConnectionError) as error:
        part, file = f"'{name}'" + (f", '{config}'" if config else ""), f"{name.rsplit('/')[-1]}.parquet"
        raise UsageError(
            f"{name} cannot be fetched: {error}\n"
            "It is no file or folder here, so it was looked for on the hub. Without a network, write it to a file where "
            f"there is one,\n    python -c \"from datasets import load_dataset; load_dataset({part}, split='{split}')"
            f".to_parquet('{file}')\"\nand give that file: openrlhf-rpo data {file} ..."
        ) from error
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise UsageError(f"{name} cannot be read: {error.__cause__ or error}") from error
