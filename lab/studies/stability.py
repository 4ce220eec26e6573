"""Many small steps, RPO against the full path (the paper's "Stability Analysis"): lengths, accuracy, gradient norms.

The paper trains on 18 samples per step, reports that the full path's response length collapses after about 200 steps while
RPO's does not, and claims Var(|grad RPO|) <= Var(|grad ALL|). This study measures, over the steps, mean and variance of the
path length (prefix and response) and of the gradient norm before clipping, and held-out accuracy. A group whose samples all
agree has no gradient, so the share of such groups is shown too: it may explain a small norm.
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any

from lab.figures import RunFigures, Step
from lab.plot import save_plot
from lab.runs import StudyError, Variant
from lab.studies.block_bootstrap import variance_ratio
from lab.training import (
    PLAIN,
    accuracy,
    add_training_arguments,
    cell,
    check_command,
    command_of,
    on_testbed,
    remarks,
    show,
    summary,
    train_all,
)
from lab.training_plot import BLUE, GREY

RPO = Variant("RPO")
TESTBED_QUESTIONS = 4
MEASURED = ("length", "grad_norm", "score")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=12)
    parser.add_argument(
        "--questions",
        type=int,
        metavar="N",
        help="questions per step (the paper: 3, of 6 samples; default: the command's, on the testbed 4)",
    )
    parser.add_argument("--skip", type=int, default=0, metavar="STEPS", help="leave out the first steps (default: 0)")


def run(args: argparse.Namespace) -> int:
    command = command_of(args)
    options = check_command(command)
    questions = args.questions or (TESTBED_QUESTIONS if on_testbed(args) else None)
    result, found = train_all(args, "stability", command, variants(questions, options.rollout.n_samples_per_prompt))
    figures = {"variants": table(found, args.skip), "remarks": remarks(found)}
    figures["gradient_variance"] = gradient_claim(found, args.skip)
    if claim := figures["gradient_variance"]:
        low, high = claim["interval"]
        words = f"Var(|grad RPO|) / Var(|grad ALL|) = {claim['ratio']:.2f}, 95 % interval {low:.2f} to {high:.2f}"
        figures["remarks"].append(f"{words}; the paper's claim that it is at most 1: {claim['verdict']}")
    result.finish(figures)
    save_plot(args.out, lambda figure, axes: draw(axes, found), panels=3)
    rows = [("", "length", "its variance", "gradient norm", "its variance", "accuracy", "no variance")]
    for name, row in figures["variants"].items():
        agree = "" if row["no_variance"] is None else f"{row['no_variance']['mean']:.0%}"
        cells = (f"{row['length']['mean']['mean']:.1f}", f"{row['length']['variance']['mean']:.1f}")
        norms = (f"{row['grad_norm']['mean']['mean']:.4f}", f"{row['grad_norm']['variance']['mean']:.2e}")
        rows.append((name, *cells, *norms, cell(row["accuracy"], ".3f"), agree))
    show(args, figures, rows)
    return 0


def variants(questions: int | None, samples: int) -> list[Variant]:
    """RPO and the full path, with steps of ``questions`` x ``samples`` if given."""
    size = {"rollout.batch_size": questions, "train.batch_size": questions * samples} if questions else {}
    return [Variant(RPO.name, size), Variant(PLAIN.name, {**size, **PLAIN.options})]


def table(found: Mapping[str, Sequence[RunFigures]], skip: int) -> dict[str, Any]:
    """By variant: mean and variance of each measure over a run's steps after ``skip``, summarized over runs; accuracies.

    ``before`` is the accuracy at step 0; None for plain OpenRLHF, which does not measure it.
    """
    rows: dict[str, Any] = {}
    for name, runs in found.items():
        steps = after(runs, skip)
        if min(map(len, steps)) < 2:
            raise StudyError(f"{name}: fewer than two steps after the first {skip}: lower --skip, or train longer")
        row: dict[str, Any] = {measure: over_steps([series(some, measure) for some in steps]) for measure in MEASURED}
        shares = [[step.no_variance for step in some if step.no_variance is not None] for some in steps]
        row["no_variance"] = summary(map(fmean, shares)) if all(shares) else None
        bases = [run.evaluations[0][1] for run in runs if run.evaluations and run.evaluations[0][0] == 0]
        row["before"], row["accuracy"] = summary(bases) if bases else None, accuracy(runs)
        rows[name] = row
    return rows


def over_steps(runs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean and (n - 1) variance over the steps of each run, summarized over the runs."""
    return {"mean": summary(fmean(run) for run in runs), "variance": summary(variance(run) for run in runs)}


def gradient_claim(found: Mapping[str, Sequence[RunFigures]], skip: int) -> dict[str, Any] | None:
    """Var(|grad RPO|) / Var(|grad ALL|) with its 95 % interval; the paper claims at most 1. None if either is missing.

    ``verdict``: "holds" or "does not hold" if the interval is on one side of 1, else "undecided".
    """
    if found.keys() < {RPO.name, PLAIN.name}:
        return None
    ours, theirs = ([series(some, "grad_norm") for some in after(found[name], skip)] for name in (RPO.name, PLAIN.name))
    try:
        ratio, low, high = variance_ratio(ours, theirs)
    except ValueError as error:
        raise StudyError(f"the gradient norms of {PLAIN.name}: {error}; nothing was trained, see its train.log") from error
    verdict = "holds" if high <= 1 else "does not hold" if low > 1 else "undecided"
    return {"ratio": ratio, "interval": [low, high], "verdict": verdict}


def after(runs: Sequence[RunFigures], skip: int) -> list[list[Step]]:
    return [[step for step in run.steps if step.step > skip] for run in runs]


def series(steps: Sequence[Step], measure: str) -> list[float]:
    return [step.path_length if measure == "length" else getattr(step, measure) for step in steps]


def draw(axes: Any, found: Mapping[str, Sequence[RunFigures]]) -> None:
    for name, runs in found.items():
        colour = BLUE if name == RPO.name else GREY
        for i, run in enumerate(runs):
            label = None if i else name
            at = [step.step for step in run.steps]
            axes[0].plot(at, series(run.steps, "length"), color=colour, lw=1, label=label)
            axes[1].plot(at, series(run.steps, "grad_norm"), color=colour, lw=1, label=label)
            axes[2].plot(
                [e[0] for e in run.evaluations], [e[1] for e in run.evaluations], color=colour, marker=".", label=label
            )
    axes[0].set(title="Path length, tokens", xlabel="step")
    axes[1].set(title="Gradient norm before clipping", xlabel="step")
    axes[2].set(title="Held-out accuracy", xlabel="step", ylim=(0, 1.02))
