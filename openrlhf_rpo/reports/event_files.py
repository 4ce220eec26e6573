"""A run read from its TensorBoard event files, the only figures that a plain run (``--rpo.enable false``) writes.

Plain OpenRLHF keeps no database, so its questions, data, tokenizer and options are unknown. Its figures appear under our
names where they are the same quantity.
"""

import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.reports.run import STEP_SECONDS, Run
from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL
from openrlhf_rpo.types import StepRecord

_NAMES = {
    "rpo/score": ("score", "rollout/reward_mean", "reward"),
    "rpo/generated_tokens": ("rollout/response_length_mean", "response_length"),
    "rpo/path_length": ("rollout/response_length_mean", "response_length"),
    "rpo/truncated_rate": ("rollout/truncated_rate", "truncated"),
    "timing/rollout": ("timing/generation",),  # includes the rewards
    "timing/log_probs": ("timing/make_experience",),
    "timing/train": ("timing/ppo_train",),
    "timing/weight_sync": ("timing/broadcast",),
}
"""Our name -> upstream's names of the same quantity; the first one logged counts."""


def event_folder(text: str) -> Path | None:
    """The folder of one run's event files: ``text`` or the only folder below it that has any; None without any.

    Raises UsageError if there are several.
    """
    folders = sorted({file.parent for file in Path(text).rglob("events.out.tfevents.*")}) if Path(text).is_dir() else []
    if len(folders) > 1:
        names = "".join(f"\n  {folder}" for folder in folders[:8])
        raise UsageError(f"{text} holds the event files of {len(folders)} runs. Name one of them:{names}")
    return folders[0] if folders else None


def read_event_files(folder: Path, name: str) -> Run:
    """The run whose event files are in ``folder``. Raises UsageError if they hold no figures of a training run."""
    scalars = _read_scalars(folder)
    steps, evaluations = _by_step(scalars, "train/"), _by_step(scalars, "eval/")
    if not steps and not evaluations:
        raise UsageError(
            f"the event files in {folder} hold no figure under train/ or eval/, as OpenRLHF logs them. Is it the "
            "--logger.tensorboard_dir of a training run that has made a step?"
        )
    ours = any(GENERATED_TOTAL in metrics for metrics in steps.values())
    records = [StepRecord(step, 0, 0, metrics) for step, metrics in steps.items()]
    note = (
        "Read from event files: figures only. Questions and lineages are in the run's path cache (its --ckpt.path)."
        if ours
        else "A plain run, read from its event files: it has no path cache, so no questions or lineages, and its data and "
        "options are not recorded."
    )
    records = records if ours else _translated(records)
    unlogged = _unlogged([*steps], ours)
    return Run(
        name=name,
        place=str(folder),
        kind="rpo" if ours else "plain",
        records=_without_totals(records, ours) if unlogged else records,
        evaluations=list(evaluations.items()),
        initial_tokens=None if ours else 0,
        notes=(note, *unlogged, *_damages(folder)),
    )


def _read_scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Tag -> step -> value of every scalar in ``folder``; the later value of a repeated step."""
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator  # takes a second

    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0})  # 0: load all
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()[SCALARS]}


def _by_step(scalars: dict[str, dict[int, float]], kind: str) -> dict[int, dict[str, float]]:
    """Step -> name -> value of the tags that start with ``kind``, in order of steps."""
    found: dict[int, dict[str, float]] = {}
    for tag in (tag for tag in scalars if tag.startswith(kind)):
        for step, value in scalars[tag].items():
            found.setdefault(step, {})[tag.removeprefix(kind)] = value
    return dict(sorted(found.items()))


def _damages(folder: Path) -> list[str]:
    """A note for each event file whose reading stops before its end, where TensorBoard says nothing.

    A record of an event file has 16 bytes (its length and two checksums) besides its content.
    """
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    notes = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        size, read, last = file.stat().st_size, 0, b""
        for record in RawEventFileLoader(str(file)).Load():
            read, last = read + len(record) + 16, record
        if read < size:
            notes.append(f"{file.name} is damaged or cut short after step {Event.FromString(last).step:,}.")
    return notes


def _unlogged(steps: Sequence[int], ours: bool) -> list[str]:
    """A note if not every step from the first was logged (``--logger.logging_steps``)."""
    gaps = {later - earlier for earlier, later in pairwise([0, *steps])}
    if gaps <= {0, 1}:
        return []
    which = (
        f"Logged every {gaps.pop()} steps" if len(gaps) == 1 else f"Only {len(steps):,} of {steps[-1]:,} steps are logged"
    )
    return [f"{which}: {'the total of seconds is' if ours else 'totals of tokens and seconds are'} unknown."]


def _without_totals(records: list[StepRecord], ours: bool) -> list[StepRecord]:
    """Records without the figures that are summed over all steps; our tokens are sums already."""
    summed = {STEP_SECONDS} if ours else {STEP_SECONDS, GENERATED_TOTAL}
    return [StepRecord(r.step, 0, 0, {k: v for k, v in r.metrics.items() if k not in summed}) for r in records]


def _translated(records: list[StepRecord]) -> list[StepRecord]:
    """Plain figures under our names, and cumulative tokens, those of the samples trained on."""
    total, translated = 0.0, []
    renamed = {name for names in _NAMES.values() for name in names if name.startswith("timing/")}
    for record in records:
        old = record.metrics
        new = {ours: next((old[name] for name in names if name in old), math.nan) for ours, names in _NAMES.items()}
        total += new["rpo/generated_tokens"] * old.get("rollout/num_samples", math.nan)
        new |= {GENERATED_TOTAL: total, REUSED_TOTAL: 0.0, "rpo/prefix_tokens": 0.0}
        kept = {name: value for name, value in old.items() if name not in renamed}
        translated.append(StepRecord(record.step, 0, 0, kept | {k: v for k, v in new.items() if math.isfinite(v)}))
    return translated
