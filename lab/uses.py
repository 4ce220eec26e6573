"""What drafts, chosen questions and a stopped tail add to GRPO and RAFT on full answers, each alone and together.

Every run is one of the frontier's (``lab/frontier.py``): the real command, arms alternating seed by seed. The arms of a
baseline differ in nothing but the use. Beside the frontier's figures: for each arm and seed the ratio to the baseline of the
same seed in seconds of steps, generated tokens, and mean length of an answer at the end, and the difference in accuracy at
the end; medians, smallest and largest. Does a stopped tail favour short answers? Their length says so.

    make bench NAME=uses QUICK=1                                   one level, two arms, a few steps
    python -m lab.bench uses --baselines grpo --levels hard --seeds 0 1 2 --report FILE
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab import frontier
from lab.arms import USES
from lab.bench import table, write_report
from openrlhf_rpo.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baselines", nargs="+", default=["grpo", "raft"], choices=["grpo", "raft"])
    parser.add_argument("--uses", nargs="+", default=list(USES)[1:], choices=list(USES)[1:])
    frontier.add_run_arguments(parser, "runs/uses")
    parser.set_defaults(seeds=[0, 1, 2, 3, 4], questions=64, evaluations=4, lr=None)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate unfinished runs, and compare each with its baseline."""
    if args.quick:
        args.levels, args.seeds, args.baselines, args.uses = ["main"], [0], ["grpo"], ["drafts_tail"]
        args.shape, args.steps, args.evaluations = ["4x4"], 4, 1
    if len(args.shape or []) > 1:
        raise UsageError("--shape: one for all runs, which are compared with each other")
    args.arms = [f"{baseline}_{use}" for baseline in args.baselines for use in ("alone", *args.uses)]
    figures = frontier.measure(args)
    for arms in figures["levels"].values():
        compare(arms)
    write_report(args.report, figures, page(figures))
    return figures


def compare(arms: Mapping[str, Any]) -> None:
    """Add ``against`` to every arm: seconds, tokens and accuracy against the arm of its baseline, seed by seed."""
    by_name = {name.partition("-")[0]: arm for name, arm in arms.items() if name != "base"}
    for name, arm in by_name.items():
        base = by_name[f"{name.partition('_')[0]}_alone"]
        pairs = [(arm["by_seed"][seed], base["by_seed"][seed]) for seed in arm["by_seed"] if seed in base["by_seed"]]
        arm["against"] = {
            "seconds": spread([ours["seconds"] / theirs["seconds"] for ours, theirs in pairs]),
            "tokens": spread([ours["tokens"] / theirs["tokens"] for ours, theirs in pairs]),
            "length": spread([ours["length"] / theirs["length"] for ours, theirs in pairs]),
            "accuracy": spread([ours["accuracy"] - theirs["accuracy"] for ours, theirs in pairs]),
        }


def spread(values: Sequence[float]) -> list[float]:
    """Median, smallest and largest."""
    return [round(value, 4) for value in (median(values), min(values), max(values))]


def page(figures: Mapping[str, Any]) -> list[str]:
    """The frontier's report with a table of the comparison first."""
    lines = frontier.page(figures, None)
    lines[0] = lines[0].replace("Accuracy against generated tokens", "Drafts, chosen questions, stopped tail")
    at = next(i for i, line in enumerate(lines) if line.startswith("## "))
    compared = ["Against the baseline of the same seed, median (smallest to largest):", ""]
    for level, arms in figures["levels"].items():
        rows = [
            [name, *(f"{m:.2f} ({low:.2f} to {high:.2f})" for m, low, high in arm["against"].values())]
            for name, arm in arms.items()
            if name != "base"
        ]
        head = [level, "seconds of steps, ratio", "tokens, ratio", "length at the end, ratio", "accuracy, difference"]
        compared += [*table(head, rows), ""]
    return lines[:at] + compared + lines[at:]
