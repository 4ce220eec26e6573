"""A run read from its TensorBoard event files, the only figures that a plain run (``--rpo.enable false``) writes.

Plain OpenRLHF keeps no database, so its questions, data, tokenizer and options are unknown. Its figures appear under our
names where they are the same quantity.
"""

import logging
import math
from pathlib import Path

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.reports.run import GENERATED, REUSED, Run
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
    ours = any(GENERATED in metrics for metrics in steps.values())
    records = [StepRecord(step, 0, 0, metrics) for step, metrics in steps.items()]
    note = (
        "Read from event files: figures only. Questions and lineages are in the run's path cache (its --ckpt.path)."
        if ours
        else "A plain run, read from its event files: it has no path cache, so no questions or lineages, and its data and "
        "options are not recorded."
    )
    return Run(
        name=name,
        place=str(folder),
        kind="rpo" if ours else "plain",
        records=records if ours else _translated(records),
        evaluations=list(evaluations.items()),
        notes=(note,),
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


def _translated(records: list[StepRecord]) -> list[StepRecord]:
    """Plain figures under our names, and cumulated tokens: those of the samples that were trained on."""
    total, translated = 0.0, []
    renamed = {name for names in _NAMES.values() for name in names if name.startswith("timing/")}
    for record in records:
        old = record.metrics
        new = {ours: next((old[name] for name in names if name in old), math.nan) for ours, names in _NAMES.items()}
        total += new["rpo/generated_tokens"] * old.get("rollout/num_samples", math.nan)
        new |= {GENERATED: total, REUSED: 0.0, "rpo/prefix_tokens": 0.0}
        kept = {name: value for name, value in old.items() if name not in renamed}
        translated.append(StepRecord(record.step, 0, 0, kept | {k: v for k, v in new.items() if math.isfinite(v)}))
    return translated
