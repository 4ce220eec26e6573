"""A stronger model's paths as the initial cache of a weaker one (the paper's appendix "Using a large model's cache pool").

The stronger model samples a path for every question (and is then trained for an epoch, which does not matter). The command's
model starts once from those paths (--rpo.init.mode import) and once from its own. On the testbed the stronger model is the
base model of level main, on the questions of level hard.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.figures import RunFigures
from lab.plot import save_plot
from lab.runs import StudyError, Variant, runs_of
from lab.testbed import model_dir
from lab.training import (
    accuracy,
    add_training_arguments,
    check_command,
    command_of,
    folder_of,
    on_testbed,
    remarks,
    replaying_all,
    show,
    summary,
    train_all,
)
from lab.training_plot import BLUE, ORANGE

STRONGER, IMPORTED, OWN = "stronger", "stronger's cache", "own cache"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=16, level="hard")
    parser.add_argument("--stronger", metavar="MODEL", help="folder or hub name of the stronger model")
    parser.add_argument("--source", metavar="CACHE", help="instead: paths of a stronger model, as for --rpo.init.source")


def run(args: argparse.Namespace) -> int:
    command = replaying_all(command_of(args))
    check_command(command)
    stronger = args.stronger or (str(model_dir("main")) if on_testbed(args) and not args.source else "")
    if bool(stronger) == bool(args.source):
        raise StudyError("give either the stronger model with --stronger, or a cache of its paths with --source")
    found, source = {}, args.source
    if stronger:
        # Its folder is in the options of the runs that import from it, so those of another model are not taken for them.
        first = Variant(f"{STRONGER} {Path(stronger).name}", {"actor.model_name_or_path": stronger, "train.num_episodes": 1})
        _, found = train_all(args, "large-to-small", command, [first], seeds=args.seeds[:1])
        [sampled] = runs_of([first], args.seeds[:1], folder_of(args))
        source = f"{sampled.folder / 'checkpoints'}@0"
    result, trained = train_all(args, "large-to-small", command, variants(source))
    figures = {"variants": table(found | trained), "remarks": remarks(trained)}
    result.finish(figures)
    save_plot(args.out, lambda figure, axis: draw(axis, trained))
    rows = [("", "right in the initial cache", "tokens for it", "accuracy before", "after")]
    for name, row in figures["variants"].items():
        initial = "" if row["initial_score"] is None else f"{row['initial_score']:.1%} of {row['initial_paths']}"
        after = "" if name.startswith(f"{STRONGER} ") else f"{row['last']['mean']:.3f}"
        rows.append((name, initial, f"{row['initial_tokens']:,.0f}", f"{row['first']['mean']:.3f}", after))
    show(args, figures, rows)
    return 0


def variants(source: str) -> list[Variant]:
    """The command's model with the stronger model's paths, and with its own."""
    imported = {"rpo.init.mode": "import", "rpo.init.source": source}
    return [Variant(IMPORTED, imported), Variant(OWN, {"rpo.init.mode": "bulk"})]


def table(found: Mapping[str, Sequence[RunFigures]]) -> dict[str, Any]:
    """By variant: number of paths in the initial cache, the share that is right, its tokens, and accuracies.

    The tokens of an imported cache are in the stronger model's row.
    """
    return {
        name: {
            "initial_paths": runs[0].initial_paths,
            "initial_score": runs[0].initial_score,
            "initial_tokens": summary(run.initial_tokens for run in runs)["mean"],
            "first": summary(run.evaluations[0][1] for run in runs),
            "last": accuracy(runs),
            "tokens": summary(run.generated for run in runs),
        }
        for name, runs in found.items()
    }


def draw(axis: Any, trained: Mapping[str, Sequence[RunFigures]]) -> None:
    for name, runs in trained.items():
        for i, one in enumerate(runs):
            steps, values = [e[0] for e in one.evaluations], [e[1] for e in one.evaluations]
            axis.plot(steps, values, color=BLUE if name == IMPORTED else ORANGE, marker=".", label=None if i else name)
    axis.set(title="Held-out accuracy from the bare question", xlabel="step", ylim=(0, 1.02))
