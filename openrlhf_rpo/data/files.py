"""Data files, checked before ``datasets`` reads them: its JSON reader crashes on deep nesting, and names no line."""

import csv
import json
import pickle
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from openrlhf_rpo.errors import UsageError, reason_of

_DEEPEST = 60  # pyarrow's types nest up to 64 deep
_LONGEST_LINE = 2**26  # bytes
_LONGEST_ARRAY = 2**28  # bytes; all of it is in memory several times
_SAVED = ("state.json", "dataset_info.json", "dataset_dict.json")  # what ``save_to_disk`` writes beside rows
_READERS_RAISE = (OSError, ValueError, RuntimeError, LookupError, TypeError, pickle.UnpicklingError)


class _Bad(Exception):
    """What is wrong with a file; the message begins with the line if known."""


@contextmanager
def readable(names: Sequence[str], flag: str = "", config: str | None = None, split: str = "train") -> Iterator[None]:
    """Check the local files of these data sets; inside, errors of ``datasets`` become UsageError with their cause.

    ``flag`` is the option that named them; ``config``, ``split``: for those on the hub.
    """
    for name in names:
        _check(_place(name, flag), flag)
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    shown = f"{flag} {','.join(names)}".strip()
    try:
        yield
    except StopIteration as error:  # what ``datasets`` raises for a file without rows
        raise UsageError(f"{shown}: the data set is empty") from error
    except (DatasetNotFoundError, ConnectionError) as error:
        raise UsageError(f"{shown}: {_not_fetched(names, config, split, error)}") from error
    except (*_READERS_RAISE, DatasetsError) as error:
        raise UsageError(f"{shown}: cannot be read: {reason_of(error.__cause__ or error)}") from error


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` of ``datasets`` wrote this folder: a data set, or several splits (as ``load_from_disk``)."""
    state, info, splits = (folder / name for name in _SAVED)
    return state.is_file() and info.is_file() or splits.is_file()


def _not_fetched(names: Sequence[str], config: str | None, split: str, error: Exception) -> str:
    name = next((name for name in names if not Path(name).exists()), names[0])
    file = f"{name.rsplit('/')[-1]}.parquet"
    which = f"{name!r}, {config!r}" if config else f"{name!r}"
    program = f"from datasets import load_dataset; load_dataset({which}, split={split!r}).to_parquet({file!r})"
    return (
        f"there is no such file or folder here, and the hub did not give it: {reason_of(error)}\n"
        "Correct the name, or write the data set to a file on a machine with a network,\n"
        f"    python -c {shlex.quote(program)}\n"
        f"and give {file} instead, whose only split is train"
    )


def _place(name: str, flag: str) -> str:
    """Where a data set is. With a training option (``flag``), OpenRLHF takes what follows an @ as a folder in it."""
    name = name.strip()
    if not flag:
        return name
    place, at, _ = name.partition("@")
    if at and Path(name).exists() and not Path(place).exists():
        raise UsageError(f"{flag} {name}: OpenRLHF takes what follows an @ as a folder of the data set; rename the file")
    return place.strip()


def _check(name: str, flag: str) -> None:
    """Raises UsageError for a file that is missing, of another kind, or broken; a name on the hub is left alone."""
    if not name:
        raise UsageError(f"{flag}: an empty name; expected a file, a folder or a data set on the hub".removeprefix(": "))
    path = Path(name)
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.suffix in _CHECKS and file.is_file()]
        if not files:
            raise UsageError(f"{flag} {name}: no file in this folder has a name that ends in {', '.join(_CHECKS)}".strip())
    elif path.exists():
        files = [path]
    elif path.suffix in _CHECKS or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError(f"{flag} {name}: there is no such file or folder".strip())
    else:
        files = []
    for file in files:
        try:
            if file.suffix not in _CHECKS or not file.is_file():
                raise _Bad(f": a data file's name must end in {', '.join(_CHECKS)}")
            check = _check_object if file.name in _SAVED and is_saved(path) else _CHECKS[file.suffix]
            check(file)
        except _Bad as error:
            raise UsageError(f"{flag} {file}{error}".strip()) from error
        except OSError as error:
            raise UsageError(f"{flag} {file}: cannot be read: {error.strerror or error}".strip()) from error


# ── JSON ──


def _check_json(file: Path) -> None:
    """One object a line, or one array of objects."""
    with file.open("rb") as source:
        start = source.read(2**12).removeprefix(b"\xef\xbb\xbf").lstrip()
        source.seek(0)
        if start.startswith(b"["):
            return _check_array(source.read(_LONGEST_ARRAY + 1))
        number = rows = 0
        numbers = _Numbers()
        while line := source.readline(_LONGEST_LINE + 1):
            number += 1
            if len(line) > _LONGEST_LINE:
                raise _Bad(f", line {number}: it has more than {_LONGEST_LINE:,} bytes; give each row its own line")
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                row = _parsed(line, f", line {number}")
                _check_row(row, _doubts(line), f", line {number}")
                numbers.add(row, f", line {number}")
                rows += 1
        if not rows:
            raise _Bad(": the data set is empty: the file has no rows")
        numbers.check()


def _check_object(file: Path) -> None:
    """One object, on any number of lines: no rows, but what ``save_to_disk`` says about them."""
    content = file.read_bytes()
    _check_row(_parsed(content, ""), _doubts(content), "")


def _check_array(content: bytes) -> None:
    if len(content) > _LONGEST_ARRAY:
        raise _Bad(f": a JSON array of more than {_LONGEST_ARRAY:,} bytes; write one object a line (.jsonl)")
    rows = _parsed(content.removeprefix(b"\xef\xbb\xbf"), "")
    if not rows:
        raise _Bad(": the data set is empty: the array has no rows")
    doubts, numbers = _doubts(content), _Numbers()
    for number, row in enumerate(rows, 1):
        _check_row(row, doubts, f", row {number}")
        numbers.add(row, f", row {number}")
    numbers.check()


class _Numbers:
    """Finds integers that ``datasets`` would round: beyond 64 bits, or beyond 53 in a column that also has fractions."""

    def __init__(self) -> None:
        self._long: dict[str, str] = {}  # column -> what is wrong if it has fractions
        self._with_fractions: set[str] = set()

    def add(self, row: dict[str, Any], where: str, above: str = "") -> None:
        """Note the numbers of a row. Raises _Bad for one beyond 64 bits."""
        for name, value in row.items():
            self._add(above + name, value, where)

    def _add(self, column: str, value: Any, where: str) -> None:
        if isinstance(value, dict):
            self.add(value, where, f"{column}.")
        elif isinstance(value, list):
            for item in value:
                self._add(column, item, where)
        elif isinstance(value, float):
            self._with_fractions.add(column)
        elif isinstance(value, int) and abs(value) > 2**53:
            wrong = f"{where}: {column} is {value}, a number that would lose digits; write it in quotes"
            if not -(2**63) <= value < 2**63:
                raise _Bad(wrong)
            self._long.setdefault(column, wrong)

    def check(self) -> None:
        """Raises _Bad for an integer that its column cannot hold."""
        for column, wrong in self._long.items():
            if column in self._with_fractions:
                raise _Bad(wrong)


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        _not_utf8(where, content, error.start)
    except RecursionError as error:
        raise _Bad(f"{where}: lists or objects are nested more than {_DEEPEST} deep") from error
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if where else f"line {error.lineno}, column {error.colno}"
        raise _Bad(f"{where}: not JSON ({error.msg}, {at}): each line must be one whole object") from error
    except ValueError as error:  # a number with too many digits
        raise _Bad(f"{where}: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return found


class _Doubts(NamedTuple):
    """What must be looked at in every row of some JSON; most files spare the look."""

    deep: bool
    halves: bool  # of surrogate pairs


def _doubts(source: bytes) -> _Doubts:
    return _Doubts(source.count(b"[") + source.count(b"{") > _DEEPEST, b"\\ud" in source or b"\\uD" in source)


def _check_row(row: Any, doubts: _Doubts, where: str) -> None:
    if not isinstance(row, dict):
        raise _Bad(f'{where}: expected an object like {{"question": "1+1?", "answer": "2"}}, not {_kind(row)}')
    if doubts.deep and _deeper(row, _DEEPEST):
        raise _Bad(f"{where}: lists or objects are nested more than {_DEEPEST} deep")
    if doubts.halves:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _Bad(f"{where}: half a surrogate pair ({error.object[error.start]!a}) is no character") from error


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than ``most`` deep."""
    if not isinstance(value, dict | list):
        return False
    return most == 0 or any(_deeper(item, most - 1) for item in (value.values() if isinstance(value, dict) else value))


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _not_utf8(where: str, content: bytes, at: int) -> NoReturn:
    kind = {b"\x1f\x8b": "gzip-compressed; unpack it", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}.get(content[:2])
    what = f"it is {kind}" if kind else f"byte 0x{content[at]:02x}"
    raise _Bad(f"{where}: not UTF-8 text ({what}); data files must be UTF-8")


# ── CSV, Parquet ──


def _check_csv(file: Path) -> None:
    """Every row has the header's columns, whose names are unique."""
    csv.field_size_limit(_LONGEST_LINE)  # the default, 128 KiB, is shorter than some solutions
    with file.open("rb") as lines:
        reader = csv.reader(_decoded(lines), strict=True)
        rows, header = 0, []
        try:
            for row in reader:
                where = f", line {reader.line_num}"
                if not header and row:
                    header = row
                    if twice := [name for name in row if row.count(name) > 1]:
                        raise _Bad(f"{where}: the header names the column {twice[0]!r} twice")
                elif row and len(row) != len(header):
                    raise _Bad(f"{where}: the header has {len(header)} fields, this row {len(row)}: quote those with commas")
                elif row:
                    rows += 1
        except csv.Error as error:
            raise _Bad(f", line {reader.line_num}: not CSV: {error}") from error
    if not rows:
        raise _Bad(": the data set is empty: the file has no rows" + (" below its header" if header else ""))


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if b"\0" in line and line[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            raise _Bad(f", line {number}: a NUL byte; this is not CSV, or it is damaged")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            _not_utf8(f", line {number}", line, error.start)


def _check_parquet(file: Path) -> None:
    """Every page can be unpacked, and every text is UTF-8."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(batch_size=1024):
                batch.validate(full=True)
                done += len(batch)
    except pa.ArrowException as error:
        what = "not Parquet, or cut short" if "footer" in str(error) or "bytes" in str(error) else "damaged"
        raise _Bad(f"{f', after row {done:,}' if done else ''}: {what}: {reason_of(error)}") from error
    except OSError as error:  # what pyarrow raises for damaged pages
        raise _Bad(f": cannot be read: {reason_of(error)}") from error
    if not done:
        raise _Bad(": the data set is empty: the file has no rows")


_CHECKS: dict[str, Callable[[Path], None]] = {
    ".jsonl": _check_json,
    ".json": _check_json,
    ".csv": _check_csv,
    ".parquet": _check_parquet,
    ".arrow": lambda _: None,  # ``datasets`` wrote it, or says what is wrong
}
