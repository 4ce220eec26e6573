"""One plot of a run by step: training reward, held-out accuracy, tokens per sample, and time by phase."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.plot import save_plot
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.types import StepRecord

BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#15803d", "#6b7280"
PHASES = ("verify", "rollout", "reward", "log_probs", "train", "weight_sync", "cache", "own")


def plot_run(run: Run, path: Path) -> None:
    """Write a PNG."""
    save_plot(path, lambda figure, axes: _draw(run, *axes.flat), panels=2, rows=2)


def _draw(run: Run, reward: Any, accuracy: Any, tokens: Any, time: Any) -> None:
    records = run.records
    steps = [r.step for r in records]

    reward.plot(steps, _series(records, "rpo/score"), color=BLUE, label="score (samples with prefixes)")
    reward.plot(steps, _series(records, "rpo/groups_without_variance"), color=GREY, label="groups without variance")
    reward.set(title="Training reward", ylim=(0, 1.02))

    if points := run.accuracy():
        accuracy.plot(*zip(*points, strict=True), color=GREEN, marker="o")
    accuracy.set(title="Held-out accuracy, from the question alone", ylim=(0, 1.02))

    generated, reused = _series(records, "rpo/generated_tokens"), _series(records, "rpo/prefix_tokens")
    tokens.stackplot(steps, generated, reused, colors=[ORANGE, "#fed7aa"], labels=["generated", "reused from the cache"])
    tokens.set(title="Tokens per sample")

    phases = [p for p in PHASES if any(r.metrics.get(f"timing/{p}", 0) > 0 for r in records)]
    time.stackplot(steps, [_series(records, f"timing/{p}") for p in phases], labels=phases)
    time.set(title="Seconds per step")

    for axis in (reward, accuracy, tokens, time):
        axis.set_xlabel("step")


def _series(records: Sequence[StepRecord], name: str) -> list[float]:
    return [r.metrics.get(name, 0.0) for r in records]
