"""Asynchronous against synchronous training: the gain and the cost of generating a batch while the step before trains.

Every run is one of the frontier's (``lab/frontier.py``): the real command, arms alternating seed by seed. The arms of a
method differ only in pace:

- ``sync``: roll out, train, roll out, ...
- ``async``: a batch is generated while the step before trains, by the policy before that step (--train.async_enable)
- ``partial``: as ``async``, and a weight sync stops the running samples, which continue under the new weights

Figures beyond the frontier's: for each arm and seed, against the method's ``sync`` arm of the same seed, how many times
faster its steps are, the ratio of generated tokens, and the difference in accuracy at the end of the run that generated less
(linear interpolation between the other's evaluations); medians, smallest and largest. And means over steps and seeds: the
share of a step in which each side worked, and how many steps the policies that sampled the new tokens were behind the one
that trained on them. Seconds and shares are from runs that had the machine to themselves: without partial rollouts the
others train the same, so accuracy may be measured on several at a time. A step takes at least as long as the slower side:
batches have 32 questions with one answer each, where the two are about even.

    make bench NAME=async QUICK=1                                   one level, two arms, a few steps
    python -m lab.bench async --report FILE
    python -m lab.bench async --methods off --shape 16x8 --lr 3e-4 --questions 64 --steps 8 --report FILE      GRPO
"""

import argparse
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from lab import frontier, uses
from lab.arms import PACED, PACES, RAFTS
from lab.bench import write_report
from openrlhf_rpo.reports.comparison import at


def times_faster(ours: uses.BySeed, theirs: uses.BySeed) -> float | None:
    """By seconds of steps; None unless both runs had the machine to themselves."""
    return uses.seconds(theirs, ours)


def at_equal_tokens(ours: uses.BySeed, theirs: uses.BySeed) -> float:
    """The difference in accuracy at the most generated tokens that both reach."""
    tokens = min(ours["tokens"], theirs["tokens"])
    return at(ours["curve"], tokens) - at(theirs["curve"], tokens)


AGAINST = {
    "times_faster": times_faster,
    "tokens": uses.AGAINST["tokens"],
    "accuracy": at_equal_tokens,
}
OVERLAP = {  # metric of a step -> its column
    "rollout_busy": "rollout busy",
    "train_busy": "training busy",
    "policy_age": "policy age, steps",
    "policy_age_max": "oldest token, steps",
}
HEAD = ("times faster", "tokens, ratio", "accuracy at equal tokens, difference", *OVERLAP.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", nargs="+", default=list(RAFTS), choices=list(PACED))
    parser.add_argument("--paces", nargs="+", default=["async"], choices=list(PACES)[1:])
    parser.add_argument("--lr", nargs=1, type=float, default=[2.5e-4], help="of every arm (default: %(default)s)")
    frontier.add_run_arguments(parser, "runs/async")
    parser.set_defaults(seeds=[0, 1, 2, 3, 4], questions=768, evaluations=4, samples=[2, 0], shape=["32x1"], steps=24)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate unfinished runs, and compare each with the synchronous one of its method."""
    if args.quick:
        args.levels, args.seeds, args.methods, args.paces = ["main"], [0], ["off"], ["async"]
        args.shape, args.steps, args.evaluations = ["4x4"], 4, 1
    args.arms = [f"{method}_{pace}" for method in args.methods for pace in ("sync", *args.paces)]
    figures = uses.measure(args, lambda name: f"{name.rpartition('_')[0]}_sync", AGAINST)
    for arms in figures["levels"].values():
        add_overlap(arms)
    write_report(args.report, figures, uses.page(figures, "Asynchronous against synchronous training", HEAD, cells))
    return figures


def add_overlap(arms: Mapping[str, Any]) -> None:
    """Add ``overlap`` to every arm: means of its steps' records, over its finished seeds on a quiet machine."""
    for arm in (arm for name, arm in arms.items() if name != "base"):
        found = [one["overlap"] for one in arm["by_seed"].values() if one["quiet"]]
        arm["overlap"] = {
            name: round(fmean(one[name] for one in found), 4) for name in OVERLAP if found and name in found[0]
        }


def cells(arm: Mapping[str, Any]) -> list[str]:
    """The cells of ``OVERLAP``; a synchronous run has no shares."""
    return [f"{arm['overlap'][name]:.2f}" if name in arm["overlap"] else "-" for name in OVERLAP]
