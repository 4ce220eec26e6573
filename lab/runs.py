"""Training runs of a study: a user's training command, once for each set of additional options.

A run is the real command in a process of its own (``python -m openrlhf_rpo.cli.train_rpo_ray``; with RAY_ADDRESS on that
cluster). Its folder, ``OUT/VARIANT/seedN``, holds checkpoints, model, TensorBoard log, output, and ``run.json``: options,
data and duration. A finished run is never repeated, an interrupted one continues from its last checkpoint, and a folder
with other options or data is refused.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import openrlhf_rpo
from lab.attempt import Attempt, Neighbours
from lab.command import MODULE, option_words, train_command
from openrlhf_rpo import __version__
from openrlhf_rpo.durable import replacing
from openrlhf_rpo.errors import UsageError

FORMAT = 2
"""The format of ``run.json``; others are refused."""

_STEP = re.compile(r"\bstep (\d+)/(\d+)  (score \S+)")  # our own line
_PLAIN_STEP = re.compile(r"Global step (\d+):")  # OpenRLHF's
FOLDERS = ("ckpt.path", "ckpt.output_dir", "logger.tensorboard_dir", "logger.wandb.run_name", "ckpt.load_enable")
"""Options that a study sets for every run, and that do not affect the figures."""


class Stopped(Exception):
    """A run was stopped midway, because another one failed or the user interrupted."""


class StudyError(UsageError):
    """A study cannot run as requested. The message says what is wrong and what to do."""


@dataclass(frozen=True)
class Variant:
    """A named set of options (name without dashes -> value; True for a flag) added to a command."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One training run of a study: a variant, a seed, and the folder of its files."""

    variant: Variant
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.variant.name}/seed{self.seed}"


Report = Callable[[float, str], None]
"""Receives a run's progress (0 to 1, as far as known) and its latest message, a few times per minute."""


def digest_of_code(*others: Path) -> str:
    """Eight hex digits of the package's source, and of other files'."""
    files = [*others, *sorted(Path(openrlhf_rpo.__file__).parent.rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def runs_of(variants: Sequence[Variant], seeds: Sequence[int], out: Path) -> list[Run]:
    """Seed by seed with alternating variants, so that drift of the machine affects all variants alike."""
    return [Run(v, seed, out / _file_name(v.name) / f"seed{seed}") for seed in seeds for v in variants]


def words_of(command: Sequence[str], run: Run) -> list[str]:
    """The training options of one run. The run's folders and seed come last and override the user's."""
    own = {
        "train.seed": run.seed,
        "ckpt.path": run.folder / "checkpoints",
        "ckpt.output_dir": run.folder / "model",
        "logger.tensorboard_dir": run.folder / "tensorboard",
        "logger.wandb.run_name": "run",
        "logger.logging_steps": 1,
    }
    return [*command, *option_words({**run.variant.options, **own})]


def training_options(words: Sequence[str]) -> list[str]:
    """The options of a pasted training command, without everything before them."""
    for i, word in enumerate(words):
        if word == MODULE or word == "train" and os.path.basename(words[i - 1]) == "openrlhf-rpo":
            return list(words[i + 1 :])
    return [word for word in words if word != "--"]


def without_options(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """``words`` without the options ``names`` (no dashes) and their values."""
    kept, drop = [], False
    for word in words:
        if word.startswith("--"):
            drop = word[2:].partition("=")[0] in names
        if not drop:
            kept.append(word)
    return kept


def finished(run: Run) -> bool:
    """Whether the run was trained to its end, whatever its options."""
    return _read(run).get("seconds") is not None


def check_folder(run: Run, words: Sequence[str], data: Mapping[str, str]) -> None:
    """Raise StudyError if the folder belongs to a run of other options or other data."""
    known = _read(run)
    if not known:
        if any(run.folder.glob("checkpoints/*")):
            raise StudyError(f"{run.folder} holds a run that no study made: remove it, or choose another folder with --out")
        return
    if changes := changed(known["words"], words):
        raise StudyError(
            f"{run.folder} holds a run of other options ({'; '.join(changes)}): choose another folder with --out, or remove "
            "that one"
        )
    if different := sorted(name for name in data if known["data"].get(name) != data[name]):
        raise StudyError(
            f"{run.folder} was trained on other content of {', '.join(different)}: runs of different data cannot be "
            "compared. Choose another folder with --out, or restore the file"
        )


def changed(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What differs between two lists of training options, other than ``FOLDERS``."""
    a, b = _pairs(before), _pairs(now)
    names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name) and name not in FOLDERS)
    return [f"--{name} was {a.get(name, 'not given')}, now {b.get(name, 'not given')}" for name in names]


def train(run: Run, words: Sequence[str], data: Mapping[str, str], report: Report, stop: Event) -> None:
    """Train an unfinished run, from its last checkpoint if there is one. Raises StudyError if training fails, Stopped if
    another thread sets ``stop``.

    ``words`` come from ``words_of``, ``data`` from ``run.files.contents_of``.
    """
    check_folder(run, words, data)
    if finished(run):
        return
    known = _read(run)
    extra = _ways_to_resume(run, words) if known else []
    run.folder.mkdir(parents=True, exist_ok=True)
    record = {"format": FORMAT, "version": __version__, "words": list(words), "data": dict(data), "seconds": None}
    record["earlier_attempts"] = known.get("earlier_attempts", -1) + 1
    record["code"] = sorted({*known.get("code", ()), digest_of_code()})  # a resumed run may have several
    _write(run, record)
    started = time.time()
    status, neighbours = _attempt([*train_command({}), *words, *extra], run.folder / "train.log", report, stop)
    if status:
        raise StudyError(
            f"{run.name}: training ended with status {status}, see {run.folder / 'train.log'}. Finished runs are kept: the "
            "same command continues this one, and --finished reports the others"
        )
    record |= {"started": started, "seconds": time.time() - started, "neighbours": neighbours}
    _write(run, record | {"cores": len(os.sched_getaffinity(0))})


def record_of(run: Run) -> dict:
    """``run.json`` of a finished run. Raises StudyError for an unfinished one."""
    if not finished(run):
        raise StudyError(f"{run.name} is unfinished ({run.folder}): the same command without --finished continues it")
    return _read(run)


def _ways_to_resume(run: Run, words: Sequence[str]) -> list[str]:
    """``--ckpt.load_enable``. Plain OpenRLHF fails without a checkpoint, so its files are removed instead."""
    plain = _pairs(words).get("rpo.enable") == "false"
    if plain and not (run.folder / "checkpoints" / "_actor" / "latest").exists():
        for name in ("checkpoints", "model", "tensorboard"):
            shutil.rmtree(run.folder / name, ignore_errors=True)
        return []
    return ["--ckpt.load_enable"]


def _attempt(command: list[str], log: Path, report: Report, stop: Event) -> tuple[int, float]:
    """Exit status of the command, and the cores that other work on this host kept busy.

    Retried if Ray does not start within its 30 seconds, as on a busy host.
    """
    for _ in range(3):
        attempt = Attempt(command, log)
        neighbours = Neighbours(attempt)
        try:
            for line in _lines(attempt, neighbours, stop):
                _tell(line, report)
        finally:
            attempt.kill()  # also processes that outlive the command
        if not attempt.never_started():
            break
    return attempt.root.returncode, neighbours.cores


def _tell(line: str, report: Report) -> None:
    """Report the progress that a line of the output tells."""
    if match := _STEP.search(line):
        report(int(match[1]) / int(match[2]), match[0])
    elif match := _PLAIN_STEP.search(line):
        report(0.0, f"step {match[1]}")


def _lines(attempt: Attempt, neighbours: Neighbours, stop: Event) -> Iterator[str]:
    """The lines that the command writes, until it ends; looks at the neighbours at every wait. Raises Stopped."""
    with attempt.log_file.open("rb") as log:
        log.seek(attempt.log_start)
        while True:
            ended = attempt.root.poll() is not None
            for line in log:
                yield line.decode(errors="replace")
            if ended:
                return
            neighbours.look()
            if stop.wait(1):
                raise Stopped


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Option -> its words; the last ones of a repeated option."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name] = value
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name)


def _read(run: Run) -> dict:
    """``run.json``; empty if there is none."""
    file = run.folder / "run.json"
    if not file.exists():
        return {}
    with contextlib.suppress(ValueError):
        record = json.loads(file.read_text())
        if isinstance(record, dict) and record.get("format") == FORMAT:
            return record
    raise StudyError(
        f"{file} is damaged or of another release than {__version__}: remove {run.folder}, or choose another --out"
    )


def _write(run: Run, record: dict) -> None:
    with replacing(run.folder / "run.json") as file:
        file.write_text(json.dumps(record, indent=1))
