"""The checkpoints of a run, which appear only when complete.

A run killed while OpenRLHF writes a checkpoint may find none, or half of one. Here the training actors write to
``<ckpt.path>/incoming/<tag>`` (``training.resumable``), and ``publish`` moves what is complete into place::

    <ckpt.path>/_actor/latest                 the tag to resume from
    <ckpt.path>/_actor/global_step<t>/        DeepSpeed's files, metric.json and rpo_cache.db
    <ckpt.path>/_critic/global_step<t>/       with a critic
    <ckpt.path>/_actor/best_global_step<t>/   the same for the best evaluation, one at a time
    <ckpt.path>/writer                        of the run that began here last, and alone may publish
"""

import json
import math
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from openrlhf_rpo.durable import replacing, sync
from openrlhf_rpo.errors import Failed, UsageError
from openrlhf_rpo.upstream import STAGING

CACHE_FILE = "rpo_cache.db"
_TAG = re.compile(r"(best_)?global_step([0-9]{1,18})")
_GROUPS = ("_critic", "_actor")  # published in this order, so that a tag in _actor is complete in both
_METRIC_FILE = "metric.json"


class Checkpoints:
    """The checkpoints in ``--ckpt.path``: up to ``--ckpt.max_num``, not counting the best, and ``--ckpt.max_mem`` GiB."""

    def __init__(self, path: str, max_num: int, max_mem: float) -> None:
        self.path = Path(path)
        self.staging = self.path / STAGING
        self.max_num = max_num
        self.max_bytes = max_mem * 1024**3
        self._own = uuid.uuid4().hex

    @classmethod
    def of_run(cls, args: SimpleNamespace) -> "Checkpoints":
        """The checkpoints of a run with these options."""
        return cls(args.ckpt.path, args.ckpt.max_num, args.ckpt.max_mem)

    def latest(self) -> str | None:
        """The tag of the checkpoint to resume from, or None.

        It is the one named in ``latest``, or the newest if that file is empty or names a missing folder. Raises UsageError
        when ``latest`` holds anything else, such as another path.
        """
        folder = self.path / "_actor"
        named = _named(folder / "latest")
        if named and (folder / named).is_dir():
            return named
        return max(self._tags(), key=lambda tag: (step_of(tag), not tag.startswith("best")), default=None)

    def steps(self) -> set[int]:
        """The steps of all checkpoints, including the best; without any, {0}, where every run starts."""
        return {step_of(tag) for tag in self._tags()} or {0}

    def settle(self, critic: bool = False) -> str | None:
        """Before a resume, write and return ``latest()``, for the actor and, if one trains, the critic.

        Raises UsageError if the critic's is missing. Only for the process that has the cache, because a live run writes
        here.
        """
        tag = self.latest()
        for group in _GROUPS:
            folder = self.path / group
            if tag is None:
                (folder / "latest").unlink(missing_ok=True)
            elif (folder / tag).is_dir():
                if _named(folder / "latest") != tag:
                    _write(folder / "latest", tag)
            elif critic or folder.exists():
                raise UsageError(f"checkpoint {tag} is in {self.path / '_actor'}, but not in {folder}: restore that folder")
        return tag

    def claim(self) -> None:
        """Begin to write here, and remove a former run's unfinished checkpoint. A run still alive here, with another cache,
        can publish nothing from now on."""
        _write(self.path / "writer", self._own)
        self.staging.mkdir(exist_ok=True)
        self._clear_staging()

    def _need_own(self) -> None:
        writer = self.path / "writer"
        if writer.exists() and writer.read_text() != self._own:
            raise Failed(
                f"another run has begun in --ckpt.path {self.path}, and this one ends, or their checkpoints would mix: give "
                "each run a folder of its own"
            )

    def _clear_staging(self) -> None:
        """The folder itself stays: on NFS a name that is gone, or was not there when a node looked, may seem so to that node
        for a minute after another one has made it."""
        for left in self.staging.glob("*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def staging_cleared_on_error(self) -> Iterator[None]:
        """Remove the unfinished checkpoint on an error, which may be a full disk."""
        try:
            yield
        except BaseException:
            self._clear_staging()
            raise

    def is_staged(self, tag: str) -> bool:
        """Whether the training actors wrote checkpoint ``tag``, or only its model (--ckpt.disable_ds)."""
        return "_actor" in self._staged(tag) or self._staged_model(tag).is_dir()

    def _staged(self, tag: str) -> list[str]:
        return [group for group in _GROUPS if (self.staging / tag / group / tag).is_dir()]

    def _staged_model(self, tag: str) -> Path:
        """With --ckpt.save_hf."""
        return self.staging / tag / f"{tag}_hf"

    def publish(self, tag: str, copy_cache: Callable[[str], None]) -> None:
        """Complete the staged checkpoint ``tag`` with a copy of the cache, move it into place, name it in ``latest``, and
        only then remove old ones. Raises Failed if another run has begun here."""
        self._need_own()
        with self.staging_cleared_on_error():
            staged, model = self._staged(tag), self._staged_model(tag)
            if "_actor" in staged:
                copy_cache(str(self.staging / tag / "_actor" / tag / CACHE_FILE))
            for file in (self.staging / tag).rglob("*"):
                sync(file)
            for group in staged:
                _move(self.staging / tag / group / tag, self.path / group / tag)
            for group in staged:
                _write(self.path / group / "latest", tag)
            if model.is_dir():
                _move(model, self.path / model.name)
        self._clear_staging()
        self.prune(tag)

    def prune(self, newest: str) -> None:
        """Remove checkpoints beyond the limits, and older best ones if ``newest`` is one, but never ``newest``.

        As in OpenRLHF, those without a metric go first, then those with the worst, then the oldest.
        """
        for tag in self._tags("_critic") - self._tags():  # left by a process that was killed between the two
            self._remove(tag)
        tags = sorted(self._tags() - {newest}, key=step_of)
        if newest.startswith("best"):
            for tag in [t for t in tags if t.startswith("best")]:
                self._remove(tag)
        regular = sorted((t for t in tags if not t.startswith("best")), key=self._rank)
        kept = 0 if newest.startswith("best") else 1
        while regular and (len(regular) + kept > self.max_num or self._size() > self.max_bytes):
            self._remove(regular.pop(0))

    def _tags(self, group: str = "_actor") -> set[str]:
        folder = self.path / group
        names = os.listdir(folder) if folder.is_dir() else []
        return {name for name in names if _TAG.fullmatch(name) and (folder / name).is_dir()}

    def _rank(self, tag: str) -> tuple[bool, float, int]:
        metric = _metric(self.path / "_actor" / tag / _METRIC_FILE)
        return metric is not None, metric or 0.0, step_of(tag)

    def _size(self) -> int:
        folders = [self.path / group for group in _GROUPS]
        return sum(f.stat().st_size for folder in folders for f in folder.rglob("*") if f.is_file())

    def _remove(self, tag: str) -> None:
        for group in reversed(_GROUPS):  # the actor's first: the critic's is not loaded without it
            folder = self.path / group / tag
            if folder.is_dir():
                # Renamed first, so that a half removed checkpoint is never loaded.
                self.staging.mkdir(exist_ok=True)
                os.replace(folder, self.staging / f"{group}.removed")
                self._clear_staging()
                print(f"Removed checkpoint {folder}", flush=True)


def _named(file: Path) -> str:
    """The tag in a ``latest`` file; "" without one. Raises UsageError."""
    if not file.exists():
        return ""
    remedy = (
        "name one of the folders beside it (global_stepN) in that file, or remove it: the newest checkpoint is then loaded"
    )
    if not file.is_file():
        raise UsageError(f"{file} is no file: {remedy}")
    with file.open(encoding="utf-8", errors="replace") as content:
        text = content.read(200).strip()
    if text and not _TAG.fullmatch(text):
        raise UsageError(f"{file} names {text[:60]!r}, which is no checkpoint: {remedy}")
    return text


@contextmanager
def probe(folder: str) -> Iterator[str]:
    """A new temporary file in ``folder``, for other nodes to look for."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-from-every-node-") as file:
        yield file.name


def keeps_best(args: SimpleNamespace) -> bool:
    """Whether the best evaluation of a run leaves a checkpoint; the first after step 0 does in any case."""
    return bool(args.eval.dataset) and args.eval.steps > 0 and args.ckpt.best_metric_key != "none"


def writes(args: SimpleNamespace) -> bool:
    """Whether a checkpoint, where one is due, leaves files below ``--ckpt.path``."""
    return not args.ckpt.disable_ds or args.ckpt.save_hf


def step_of(tag: str) -> int:
    """The global step in a checkpoint's tag; -1 if it has none."""
    match = _TAG.fullmatch(tag)
    return int(match[2]) if match else -1


def _metric(file: Path) -> float | None:
    """The metric of a checkpoint; None without one. An unreadable one prints a warning and ends no run."""
    if not file.is_file():
        return None
    try:
        metric = json.loads(file.read_bytes())["metric_value"]
        if metric is None or (type(metric) in (int, float) and not math.isnan(metric)):
            return None if metric is None else float(metric)
        reason = "its metric_value is not a number"
    except (OSError, ValueError, OverflowError, RecursionError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    print(f"Warning: {file} is damaged ({reason}): its checkpoint counts as one without a metric", flush=True)
    return None


def _write(file: Path, text: str) -> None:
    """Replace a small file atomically."""
    with replacing(file) as temporary:
        temporary.write_text(text)


def _move(source: Path, target: Path) -> None:
    """Move a folder into place, replacing one that an earlier attempt at the same step left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.replace(target, source.with_name(source.name + ".replaced"))
    os.replace(source, target)
    sync(target.parent)
