"""Accuracy of continuations against the length of the cut (the paper's figure 1, top).

For each question one path, right or wrong, is sampled from the model or taken from a cache. It is cut at several places and
continued ``--samples`` times from each, and the answers are scored. The paper claims that longer prefixes are more accurate.
Right and wrong paths are also reported separately, because a wrong path's prefix may already hold the mistake. 100% is the
bare question. Intervals are 95 % bootstrap intervals over questions.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from lab.plot import save_plot
from lab.studies import continuations, sampling
from lab.studies.cuts import Cut, parse_cut

CUTS = ("5%", "10%", "25%", "50%", "75%", "90%", "100%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this study."""
    continuations.add_arguments(parser, questions=64, samples=8)
    parser.add_argument(
        "--cuts",
        type=parse_cut,
        nargs="+",
        default=[parse_cut(cut) for cut in CUTS],
        metavar="CUT",
        help="cuts from the end: a share of the path (50%%) or tokens (300); default: from 5%% to 100%%",
    )


def run(args: argparse.Namespace) -> int:
    """Measure the questions that are missing, then summarize."""
    result = sampling.open_result(args, "prefix-accuracy", continuations.settings(args, args.cuts))
    continuations.measure(args, result, args.cuts)
    result.finish(summarize(list(result.parts.values()), args.cuts, args.samples))
    sampling.show(args, result)
    save_plot(result.file, lambda figure, axes: _draw(axes, result.figures), panels=2)
    return 0


def summarize(parts: Sequence[dict[str, Any]], cuts: Sequence[Cut], samples: int) -> dict[str, Any]:
    """By kind of path and cut: accuracy with its interval, and tokens per sample; and the number of paths."""
    return continuations.figures_by_kind(parts, lambda members: {cut.name: _at(members, cut.name, samples) for cut in cuts})


def _at(parts: Sequence[dict[str, Any]], cut: str, samples: int) -> dict[str, float]:
    found = [part["by_cut"][cut] for part in parts]
    return continuations.intervals(at["right"] / samples for at in found) | {
        "cut_tokens": round(sum(at["cut"] for at in found) / len(found), 1),
        "generated_tokens": round(sum(at["tokens"] for at in found) / len(found) / samples, 1),
        "truncated": round(sum(at["truncated"] for at in found) / len(found) / samples, 4),
    }


def _draw(axes: Any, figures: dict[str, Any]) -> None:
    continuations.draw(axes[0], figures, lambda name, row: row["cut_tokens"])
    continuations.draw(axes[1], figures, lambda name, row: row["cut_tokens"], "generated_tokens")
    axes[0].set(title="Accuracy of continuations", xlabel="tokens cut from the end (mean)", ylim=(0, 1.02))
    axes[1].set(title="Cost of a sample", xlabel="tokens cut from the end (mean)", ylabel="tokens generated")
