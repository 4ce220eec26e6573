"""Tables as Parquet or JSONL files, written atomically and read in batches.

Both load with ``datasets.load_dataset("parquet" or "json", data_files=...)``.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from openrlhf_rpo.durable import replacing
from openrlhf_rpo.errors import ExchangeError

PARQUET, JSONL = (".parquet",), (".jsonl", ".json")
SUFFIXES = PARQUET + JSONL
_ROWS = 256  # rows in memory at a time, and per Parquet row group
_LONGEST = 2**26  # characters of a line
Row = dict[str, Any]


def write_rows(file: Path, rows: Iterable[Row], schema: pa.Schema) -> int:
    """Write ``rows`` and return how many; the file appears once it is complete and on disk.

    Raises ExchangeError when the name has none of ``SUFFIXES`` or the file cannot be written.
    """
    write = _write_parquet if suffix_of(file) in PARQUET else _write_jsonl
    try:
        with replacing(file) as temporary:
            return write(temporary, rows, schema)
    except OSError as error:
        raise ExchangeError(f"{file} cannot be written: {error.strerror or error}") from error


def read_rows(file: Path, columns: list[str] | None = None) -> Iterator[Row]:
    """The rows of a file, with all its columns or those in ``columns`` that it has. Raises ExchangeError."""
    read = _read_parquet if suffix_of(file) in PARQUET else _read_jsonl
    try:
        yield from read(file, columns)
    except (OSError, pa.ArrowException, OverflowError, LookupError, ValueError) as error:
        raise ExchangeError(f"{file} cannot be read: {error}") from error


def column_names(file: Path, wanted: Collection[str] = ()) -> list[str]:
    """The columns of a file; for JSONL, those of its first rows, until all ``wanted`` ones are found.

    Raises ExchangeError.
    """
    if suffix_of(file) in PARQUET:
        try:
            return pq.read_schema(file).names
        except (OSError, pa.ArrowException, ValueError) as error:
            raise ExchangeError(f"{file} cannot be read: {error}") from error
    found: dict[str, None] = {}
    for row in read_rows(file):
        found |= dict.fromkeys(row)
        if found.keys() >= set(wanted):
            break
    return list(found)


def batched(rows: Iterable[Any], size: int = _ROWS) -> Iterator[list[Any]]:
    """Consecutive lists of ``size`` items; the last may be shorter."""
    source = iter(rows)
    while batch := list(itertools.islice(source, size)):
        yield batch


def suffix_of(file: Path) -> str:
    """One of ``SUFFIXES``. Raises ExchangeError for others."""
    if file.suffix not in SUFFIXES:
        raise ExchangeError(f"{file}: the name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return file.suffix


def _write_parquet(file: Path, rows: Iterable[Row], schema: pa.Schema) -> int:
    count = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batched(rows):
            writer.write_table(pa.Table.from_pylist(batch, schema))
            count += len(batch)
    return count


def _write_jsonl(file: Path, rows: Iterable[Row], schema: pa.Schema) -> int:
    count = 0
    with file.open("w", encoding="utf-8") as target:
        for row in rows:
            values = {name: row.get(name) for name in schema.names}
            target.write(json.dumps(values, allow_nan=False) + "\n")
            count += 1
    return count


def _read_parquet(file: Path, columns: list[str] | None) -> Iterator[Row]:
    with pq.ParquetFile(file) as source:
        known = None if columns is None else [name for name in columns if name in source.schema_arrow.names]
        for batch in source.iter_batches(batch_size=_ROWS, columns=known):
            yield from batch.to_pylist()


def _read_jsonl(file: Path, columns: list[str] | None) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(_LONGEST), ""), 1):
            if len(line) == _LONGEST:
                raise ExchangeError(f"{file}, line {number}: longer than {_LONGEST:,} characters")
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also numbers and nesting beyond what Python reads
                raise ExchangeError(f"{file}, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ExchangeError(f"{file}, line {number}: expected one JSON object a line, not a {type(row).__name__}")
            yield row if columns is None else {name: row[name] for name in columns if name in row}
