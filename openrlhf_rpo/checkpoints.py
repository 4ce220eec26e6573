"""The checkpoints of a run: each is complete in its place, or not there.

OpenRLHF removes old checkpoints first, writes the new one among them, and names it in ``latest`` before all of it is
written; a run that is killed meanwhile may find no checkpoint, or half of one. Here the training actors write below
``<ckpt.path>/incoming`` (``training.resumable``), where nothing is looked for. When all have finished, the copy of the
path cache joins them, the folders are moved to their places, ``latest`` is replaced, and only then are old ones
removed::

    <ckpt.path>/_actor/latest                 the tag to resume from
    <ckpt.path>/_actor/global_step<t>/        DeepSpeed's files, metric.json and rpo_cache.db
    <ckpt.path>/_critic/global_step<t>/       with a critic
    <ckpt.path>/_actor/best_global_step<t>/   of the best evaluation, one at a time
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_rpo.durable import replacing, sync
from openrlhf_rpo.upstream import STAGING, UsageError

CACHE_FILE = "rpo_cache.db"
_TAG = re.compile(r"(best_)?global_step(\d+)")
_GROUPS = ("_critic", "_actor")  # in the order of publishing: a tag below _actor is complete in both
_METRIC_FILE = "metric.json"


class Checkpoints:
    """``--ckpt.path`` with ``--ckpt.max_num`` checkpoints, the best one not counted, and ``--ckpt.max_mem`` GiB."""

    def __init__(self, path: str, max_num: int, max_mem: float) -> None:
        self.path = Path(path)
        self.staging = self.path / STAGING
        self.max_num = max_num
        self.max_bytes = max_mem * 1024**3

    def latest(self) -> str | None:
        """The tag of the checkpoint to resume from, None when there is no complete one.

        ``latest`` names it; the newest folder does when that file is empty or names a folder that is gone.
        """
        folder = self.path / "_actor"
        named = _read(folder / "latest")
        if named and (folder / named).is_dir():
            return named
        return max(self._tags(), key=lambda tag: (step_of(tag), not tag.startswith("best")), default=None)

    def oldest_step(self) -> int:
        """The smallest step that a checkpoint can go back to; 0, where every run starts, without any."""
        return min((step_of(tag) for tag in self._tags()), default=0)

    def settle(self) -> str | None:
        """Before a run resumes: make ``latest`` of actor and critic name what ``latest()`` says, and drop leftovers."""
        self.clear_staging()
        tag = self.latest()
        for group in _GROUPS:
            folder = self.path / group
            if tag is None:
                (folder / "latest").unlink(missing_ok=True)
            elif (folder / tag).is_dir():
                if _read(folder / "latest") != tag:
                    _write(folder / "latest", tag)
            elif folder.exists():
                raise UsageError(f"checkpoint {tag} is in {self.path / '_actor'}, but not in {folder}: restore that folder")
        return tag

    @contextmanager
    def probe(self) -> Iterator[str]:
        """While inside, a file below ``--ckpt.path`` that has never been there, for other nodes to look for."""
        with tempfile.NamedTemporaryFile(dir=self.path, prefix=".seen-from-every-node-") as file:
            yield file.name

    def clear_staging(self) -> None:
        """Remove what a run left that ended while it wrote a checkpoint."""
        shutil.rmtree(self.staging, ignore_errors=True)

    @contextmanager
    def staging_cleared_on_error(self) -> Iterator[None]:
        """Around the writing of a checkpoint: half of one would go on filling a disk that is full."""
        try:
            yield
        except BaseException:
            self.clear_staging()
            raise

    def publish(self, tag: str, copy_cache: Callable[[str], None]) -> bool:
        """Put the staged checkpoint ``tag`` in its place, with a copy of the cache; False when none was written."""
        if not self.staging.is_dir():
            return False
        with self.staging_cleared_on_error():
            staged = [group for group in _GROUPS if (self.staging / group / tag).is_dir()]
            if "_actor" in staged:
                copy_cache(str(self.staging / "_actor" / tag / CACHE_FILE))
            _sync_files(self.staging)
            for group in staged:
                _move(self.staging / group / tag, self.path / group / tag)
            for group in staged:
                _write(self.path / group / "latest", tag)
            model = self.staging / f"{tag}_hf"  # --ckpt.save_hf
            if model.is_dir():
                _move(model, self.path / model.name)
        self.clear_staging()
        self.prune(tag)
        return True

    def prune(self, newest: str) -> None:
        """Remove older best checkpoints when ``newest`` is one, and others beyond the limits: those without a metric
        first, then those of the worst, then the oldest (as OpenRLHF does), but never ``newest``."""
        tags = sorted(self._tags() - {newest}, key=step_of)
        if newest.startswith("best"):
            for tag in [t for t in tags if t.startswith("best")]:
                self._remove(tag)
        regular = sorted((t for t in tags if not t.startswith("best")), key=self._rank)
        kept = 0 if newest.startswith("best") else 1
        while regular and (len(regular) + kept > self.max_num or self._size() > self.max_bytes):
            self._remove(regular.pop(0))

    def _tags(self) -> set[str]:
        folder = self.path / "_actor"
        names = os.listdir(folder) if folder.is_dir() else []
        return {name for name in names if _TAG.fullmatch(name) and (folder / name).is_dir()}

    def _rank(self, tag: str) -> tuple[bool, float, int]:
        text = _read(self.path / "_actor" / tag / _METRIC_FILE)
        metric = json.loads(text)["metric_value"] if text else None
        return metric is not None, float(metric or 0.0), step_of(tag)

    def _size(self) -> int:
        folders = [self.path / group for group in _GROUPS]
        return sum(f.stat().st_size for folder in folders for f in folder.rglob("*") if f.is_file())

    def _remove(self, tag: str) -> None:
        for group in reversed(_GROUPS):  # the actor's first: without it the other is not looked for
            folder = self.path / group / tag
            if folder.is_dir():
                # Under another name first, so that a checkpoint that is half removed is none.
                self.staging.mkdir(exist_ok=True)
                os.replace(folder, self.staging / f"{group}.removed")
                self.clear_staging()
                print(f"Removed checkpoint {folder}", flush=True)


def step_of(tag: str) -> int:
    """The global step in a checkpoint's tag."""
    match = _TAG.fullmatch(tag)
    return int(match[2]) if match else -1


def _read(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""


def _write(file: Path, text: str) -> None:
    """Replace a small file as a whole."""
    with replacing(file) as temporary:
        temporary.write_text(text)


def _move(source: Path, target: Path) -> None:
    """A folder to its place; one that an earlier attempt at the same step left there gives way."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        os.replace(target, source.with_name(source.name + ".replaced"))
    os.replace(source, target)
    sync(target.parent)


def _sync_files(folder: Path) -> None:
    for file in folder.rglob("*"):
        sync(file)
