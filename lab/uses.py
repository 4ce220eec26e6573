"""The effect of drafts and a stopped tail on GRPO and RAFT on full answers, each alone and together.

Every run is one of the frontier's (``lab/frontier.py``): the real command, arms alternating seed by seed. The arms of a
baseline differ only in the use. Figures beyond the frontier's: for each arm and seed the ratio to the baseline of the same
seed in seconds of steps, generated tokens, and mean length of an answer at the end, and the difference in accuracy at the
end; medians, smallest and largest. The length shows whether a stopped tail favours short answers.

    make bench NAME=uses QUICK=1                                   one level, two arms, a few steps
    python -m lab.bench uses --baselines grpo --levels hard --seeds 0 1 2 --report FILE
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from lab import frontier
from lab.arms import USES
from lab.bench import table, write_report
from openrlhf_rpo.errors import UsageError

BySeed: TypeAlias = Mapping[str, Any]
"""Seconds, tokens, accuracy, length, curve, overlap and quiet (host) of a run, as in the frontier's ``by_seed``."""
Compare: TypeAlias = Callable[[BySeed, BySeed], float | None]
"""A figure of a run against its baseline's; None if the two cannot be compared."""


def ratio(figure: str) -> Compare:
    """The ratio of a run's figure to its baseline's."""
    return lambda ours, theirs: ours[figure] / theirs[figure]


def seconds(ours: BySeed, theirs: BySeed) -> float | None:
    """The ratio of the seconds of steps; None unless both runs had the machine to themselves."""
    return ours["seconds"] / theirs["seconds"] if ours["quiet"] and theirs["quiet"] else None


AGAINST: dict[str, Compare] = {
    "seconds": seconds,
    "tokens": ratio("tokens"),
    "length": ratio("length"),
    "accuracy": lambda ours, theirs: ours["accuracy"] - theirs["accuracy"],
}
HEAD = ("seconds of steps, ratio", "tokens, ratio", "length at the end, ratio", "accuracy, difference")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baselines", nargs="+", default=["grpo", "raft"], choices=["grpo", "raft"])
    parser.add_argument("--uses", nargs="+", default=list(USES)[1:], choices=list(USES)[1:])
    parser.add_argument("--lr", nargs=1, type=float, help="learning rate of every arm (default: each arm's own)")
    frontier.add_run_arguments(parser, "runs/uses")
    parser.set_defaults(seeds=[0, 1, 2, 3, 4], questions=64, evaluations=4)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate unfinished runs, and compare each with its baseline."""
    if args.quick:
        args.levels, args.seeds, args.baselines, args.uses = ["main"], [0], ["grpo"], ["all"]
        args.shape, args.steps, args.evaluations = ["4x4"], 4, 1
    args.arms = [f"{baseline}_{use}" for baseline in args.baselines for use in ("alone", *args.uses)]
    figures = measure(args, lambda name: f"{name.partition('_')[0]}_alone", AGAINST)
    write_report(args.report, figures, page(figures, "Drafts, stopped tail", HEAD))
    return figures


def measure(args: argparse.Namespace, base_of: Callable[[str], str], against: Mapping[str, Compare]) -> dict[str, Any]:
    """The frontier's figures of ``args.arms``, each compared with the arm that ``base_of`` names."""
    if len(args.shape or []) > 1 or len(args.passes) > 1:
        raise UsageError("--shape, --passes: one for all runs, which are compared with each other")
    figures = frontier.measure(args)
    for arms in figures["levels"].values():
        compare(arms, base_of, against)
    return figures


def compare(arms: Mapping[str, Any], base_of: Callable[[str], str], against: Mapping[str, Compare]) -> None:
    """Add ``against`` to every arm: each figure against the arm of its baseline, seed by seed; empty if none is finished."""
    by_name = {name.partition("-")[0]: arm for name, arm in arms.items() if name != "base"}
    for name, arm in by_name.items():
        base = by_name[base_of(name)]["by_seed"] if base_of(name) in by_name else {}
        pairs = [(ours, base[seed]) for seed, ours in arm["by_seed"].items() if seed in base]
        found = {what: [of(*pair) for pair in pairs] for what, of in against.items()} if pairs else {}
        arm["against"] = {what: spread([value for value in values if value is not None]) for what, values in found.items()}


def spread(values: Sequence[float]) -> list[float] | None:
    """Median, smallest and largest; None without values."""
    return [round(value, 4) for value in (median(values), min(values), max(values))] if values else None


def cell_of(found: Sequence[float] | None) -> str:
    """The three values of ``spread`` in a table."""
    return "{:.2f} ({:.2f} to {:.2f})".format(*found) if found else "-"


def page(
    figures: Mapping[str, Any],
    title: str,
    head: Sequence[str],
    more: Callable[[Mapping[str, Any]], Sequence[str]] = lambda arm: (),
) -> list[str]:
    """The frontier's report with a table of the comparison first; ``more``: further cells of an arm."""
    lines = frontier.page(figures, None)
    lines[0] = lines[0].replace("Accuracy against generated tokens", title)
    at = next(i for i, line in enumerate(lines) if line.startswith("## "))
    compared = ["Against the baseline of the same seed, median (smallest to largest):", ""]
    for level, arms in figures["levels"].items():
        rows = [
            [name, *(cell_of(found) for found in arm["against"].values()), *more(arm)]
            for name, arm in arms.items()
            if name != "base" and arm["against"]
        ]
        compared += [*table([level, *head], rows), ""]
    return lines[:at] + compared + lines[at:]
