"""Generated tokens per sample against L, the largest cut (the paper's table "average number of tokens generated").

Unless the command says otherwise, every group replays a path sampled before training and cut uniformly, as in the paper. The
paper's reference code caps a response at the cut (--budget factor:1, the default here); with --budget remaining a response
may finish. Read the counts together with the truncated rate: a truncated response costs few tokens and is wrong.
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lab.figures import RunFigures
from lab.plot import save_plot
from lab.runs import Variant
from lab.training import (
    PLAIN,
    accuracy,
    add_training_arguments,
    cell,
    check_command,
    command_of,
    on_testbed,
    remarks,
    replaying_all,
    show,
    summary,
    train_all,
)
from lab.training_plot import BLUE, GREY, ORANGE

LENGTHS = ("fixed:300", "fixed:500", "fixed:800")
TESTBED_LENGTHS = ("fixed:24", "fixed:40", "fixed:65", "ratio:0.5")
"""The paper's lengths scaled down: 11, 19 and 30 % of a full path; and one half, as in its accuracy table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=8)
    words = "values of --rpo.cut.max (default: the paper's 300, 500 and 800; on the testbed scaled down, and half)"
    parser.add_argument("--lengths", nargs="+", metavar="L", help=words)
    parser.add_argument(
        "--budget", nargs="+", default=["factor:1"], metavar="RULE", help="values of --rpo.budget.rule (default: factor:1)"
    )


def run(args: argparse.Namespace) -> int:
    command = replaying_all(command_of(args))
    check_command(command)
    lengths = args.lengths or (TESTBED_LENGTHS if on_testbed(args) else LENGTHS)
    result, found = train_all(args, "tokens", command, variants(lengths, args.budget))
    figures = {"variants": table(found), "remarks": remarks(found)}
    result.finish(figures)
    save_plot(args.out, lambda figure, axes: draw(axes, figures["variants"]), panels=2)
    rows = [("L, budget", "tokens/sample", "of full path", "for the cache", "truncated", "bare", "accuracy")]
    for name, row in figures["variants"].items():
        share = "" if row["share"] is None else f"{row['share']:.1%}"
        shares = (share, cell(row["initial_tokens"], ".1f"), cell(row["truncated"], ".1%"), cell(row["bare"], ".1%"))
        cells = (cell(row["tokens"], ".1f"), *shares, cell(row["accuracy"], ".3f"))
        rows.append((name, *cells))
    show(args, figures, rows)
    return 0


def variants(lengths: Sequence[str], budgets: Sequence[str]) -> list[Variant]:
    """Each L with each budget, then the full path."""
    grid = [(length, budget) for length in lengths for budget in budgets]
    return [Variant(f"{a}, {b}", {"rpo.cut.max": a, "rpo.budget.rule": b}) for a, b in grid] + [PLAIN]


def table(found: Mapping[str, Sequence[RunFigures]]) -> dict[str, Any]:
    """By variant: tokens per sample, their share of the full path's (None without that run), truncated rate, accuracy.

    ``bare`` is the share of groups without a cached path; they generate whole paths and lift the mean above L/2.
    ``initial_tokens`` are those of the initial cache per training sample; ``tokens`` excludes them.
    """
    full = [run.generated for run in found.get(PLAIN.name, [])]
    rows = {}
    for name, runs in found.items():
        tokens = summary(run.generated for run in runs)
        rows[name] = {
            "tokens": tokens,
            "share": tokens["mean"] / summary(full)["mean"] if full else None,
            "truncated": summary(run.truncated for run in runs),
            "bare": summary(fmean(step.bare for step in run.steps) for run in runs),
            "accuracy": accuracy(runs),
            "initial_tokens": summary(run.initial_tokens / sum(s.samples for s in run.steps) for run in runs),
        }
    return rows


def draw(axes: Any, rows: Mapping[str, Any]) -> None:
    names = list(rows)
    colours = [GREY if name == PLAIN.name else BLUE for name in names]
    axes[0].barh(names, [row["tokens"]["mean"] for row in rows.values()], color=colours)
    axes[0].set(title="Generated tokens per sample", xlabel="tokens")
    axes[1].barh(names, [row["truncated"]["mean"] for row in rows.values()], color=ORANGE)
    axes[1].set(title="Truncated", xlabel="share of samples", xlim=(0, 1))
    axes[1].set_yticklabels([])
    axes[0].invert_yaxis()
    axes[1].invert_yaxis()
