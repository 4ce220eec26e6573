"""Held-out accuracy over L, alpha and epsilon (the paper's heat map of L and alpha, and its appendix on epsilon).

Every combination of the given values is a trial; other options stay as in the command. Ray Tune runs the trials on the
cluster of RAY_ADDRESS or on this machine, as many at a time as devices allow, or --parallel. `--epsilon off` never updates
the cache, which therefore has to be sampled before training: unless the command says otherwise, the study uses
--rpo.method rpo, --rpo.init.mode bulk and --rpo.replay.share 0, as in the paper.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

from lab.figures import RunFigures
from lab.plot import save_plot
from lab.runs import StudyError, Variant
from lab.training import (
    accuracy,
    add_training_arguments,
    check_command,
    command_of,
    remarks,
    replaying_all,
    show,
    summary,
    train_all,
)

OPTIONS = {"L": "rpo.cut.max", "alpha": "rpo.shaping.alpha", "epsilon": "rpo.update.epsilon"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=8)
    parser.add_argument(
        "--L", nargs="+", metavar="L", help="values of --rpo.cut.max (the paper: fixed:300 ratio:0.5 ratio:1)"
    )
    parser.add_argument("--alpha", nargs="+", metavar="A", help="values of --rpo.shaping.alpha (the paper: 0 0.01 0.1 1)")
    parser.add_argument(
        "--epsilon", nargs="+", metavar="E", help="values of --rpo.update.epsilon, or off (the paper: 0 0.1 0.5 0.9)"
    )
    parser.add_argument("--parallel", type=int, metavar="N", help="runs at a time (default: as many as devices allow)")


def run(args: argparse.Namespace) -> int:
    grid = {name: values for name in OPTIONS if (values := getattr(args, name))}
    if not grid:
        raise StudyError("nothing to sweep over: give values with --L, --alpha or --epsilon")
    if args.parallel is not None and args.parallel < 1:
        raise StudyError(f"--parallel {args.parallel}: at least 1")
    command = replaying_all(command_of(args))
    options = check_command(command)
    from lab.trials import through_tune  # imports Ray, which is slow

    result, found = train_all(
        args, "sweep", command, variants(grid), lambda jobs: through_tune(jobs, options, args.parallel)
    )
    figures = {"grid": grid, "trials": table(found), "remarks": remarks(found)}
    result.finish(figures)
    maps = heat_maps(grid, figures["trials"])
    save_plot(args.out, lambda figure, axes: draw(figure, [axes] if len(maps) == 1 else axes, maps), panels=len(maps))
    rows = [("trial", "accuracy", "sd", "tokens/sample", "truncated")]
    for name, row in sorted(figures["trials"].items(), key=lambda item: -item[1]["accuracy"]["mean"]):
        cells = (f"{row['accuracy']['mean']:.3f}", f"{row['accuracy']['sd']:.3f}", f"{row['tokens']['mean']:.1f}")
        rows.append((name, *cells, f"{row['truncated']['mean']:.1%}"))
    show(args, figures, rows)
    return 0


def variants(grid: Mapping[str, Sequence[str]]) -> list[Variant]:
    """A variant for every combination."""
    trials = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [Variant(trial_name(trial), {OPTIONS[name]: value for name, value in trial.items()}) for trial in trials]


def trial_name(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def table(found: Mapping[str, Sequence[RunFigures]]) -> dict[str, Any]:
    """By trial: final accuracy from the bare question, tokens per sample, truncated rate; over its runs."""
    return {
        name: {
            "accuracy": accuracy(runs),
            "tokens": summary(run.generated for run in runs),
            "truncated": summary(run.truncated for run in runs),
        }
        for name, runs in found.items()
    }


def heat_maps(
    grid: Mapping[str, Sequence[str]], trials: Mapping[str, Any]
) -> list[tuple[str, str, Sequence[str], str, Sequence[str], list[list[float]]]]:
    """(title, name of the rows, rows, name of the columns, columns, accuracies) of each map.

    The last two options span a map; each value of a third has its own map. Unfinished trials are NaN.
    """
    axes = {"": ("",), **grid} if len(grid) == 1 else dict(grid)
    *outer, rows, columns = axes
    titles = [{name: value} for name in outer for value in axes[name]] or [{}]
    maps = []
    for fixed in titles:
        cells = [[_cell(trials, {**fixed, rows: r, columns: c}) for c in axes[columns]] for r in axes[rows]]
        maps.append((trial_name(fixed), rows, axes[rows], columns, axes[columns], cells))
    return maps


def _cell(trials: Mapping[str, Any], values: Mapping[str, str]) -> float:
    row = trials.get(trial_name({name: value for name, value in values.items() if name}))
    return row["accuracy"]["mean"] if row else nan


def draw(figure: Any, axes: Sequence[Any], maps: Sequence[Any]) -> None:
    low = min((v for *_, cells in maps for row in cells for v in row if not isnan(v)), default=0.0)
    high = max((v for *_, cells in maps for row in cells for v in row if not isnan(v)), default=1.0)
    for axis, (title, row_name, rows, column_name, columns, cells) in zip(axes, maps, strict=True):
        image = axis.imshow(cells, vmin=low, vmax=high, cmap="viridis")
        axis.set(title=f"Held-out accuracy {title}".strip(), xlabel=column_name, ylabel=row_name)
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), rows)
        for i, row in enumerate(cells):
            for j, value in enumerate(row):
                shade = "white" if value < (low + high) / 2 else "black"
                axis.text(j, i, "" if isnan(value) else f"{value:.3f}", ha="center", va="center", color=shade)
    figure.colorbar(image, ax=list(axes), shrink=0.8)
