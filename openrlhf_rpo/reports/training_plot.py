"""One picture of a run: reward in training, held-out accuracy, tokens a sample, and where the time went, by step."""

from collections.abc import Sequence
from pathlib import Path

from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.types import StepRecord

BLUE, ORANGE, GREEN, GREY = "#2563eb", "#ea580c", "#15803d", "#6b7280"
PHASES = ("verify", "rollout", "reward", "log_probs", "train", "weight_sync", "cache", "own")


def plot_run(run: Run, path: Path) -> None:
    """Write a PNG."""
    import matplotlib  # the colours and phases above are also wanted where it is not installed

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = run.records
    steps = [r.step for r in records]
    figure, ((reward, accuracy), (tokens, time)) = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)

    reward.plot(steps, _series(records, "rpo/score"), color=BLUE, label="score of the samples (they see prefixes)")
    reward.plot(steps, _series(records, "rpo/groups_without_variance"), color=GREY, label="groups without variance")
    reward.set(title="Training reward", ylim=(0, 1.02))

    if points := run.accuracy():
        accuracy.plot(*zip(*points, strict=True), color=GREEN, marker="o")
    accuracy.set(title="Held-out accuracy, from the question alone", ylim=(0, 1.02))

    generated, reused = _series(records, "rpo/generated_tokens"), _series(records, "rpo/prefix_tokens")
    tokens.stackplot(steps, generated, reused, colors=[ORANGE, "#fed7aa"], labels=["generated", "reused from the cache"])
    tokens.set(title="Tokens a sample")

    phases = [p for p in PHASES if any(r.metrics.get(f"timing/{p}", 0) > 0 for r in records)]
    time.stackplot(steps, [_series(records, f"timing/{p}") for p in phases], labels=phases)
    time.set(title="Seconds a step")

    for axis in (reward, accuracy, tokens, time):
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, loc="best", framealpha=0.8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _series(records: Sequence[StepRecord], name: str) -> list[float]:
    return [r.metrics.get(name, 0.0) for r in records]
