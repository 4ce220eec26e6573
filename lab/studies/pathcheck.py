"""How often a prefix of a stored path already holds the mistake that makes its continuations fail.

Each path is continued from several depths (25%: its first quarter is kept) and compared with samples from the bare question.
A prefix is *poisoned* if its continuations succeed significantly less often than the bare question (Fisher's exact test,
p < 0.05): a group that starts there gives little signal, and an update rule that admits any path would keep it. The test
cannot detect a mistake if the bare question fails too, so the share is a lower bound; by chance, up to 5 % of sound prefixes
count as poisoned. On the testbed, whose steps can be checked, the study also reports the share of prefixes with a mistake,
and the test's result for prefixes with and without one. Intervals are 95 % bootstrap intervals over questions.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from lab.plot import save_plot
from lab.studies import continuations, sampling
from lab.studies.cuts import parse_cut
from lab.studies.fisher import fewer_by_chance

DEPTHS = (25, 50, 75, 90)
LEVEL = 0.05
_BARE = "100%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this study."""
    continuations.add_arguments(parser, questions=64, samples=16)
    parser.add_argument(
        "--depths",
        type=int,
        nargs="+",
        choices=range(1, 100),
        default=list(DEPTHS),
        metavar="PERCENT",
        help=f"kept part of a path, in percent of its tokens (default: {' '.join(map(str, DEPTHS))})",
    )


def run(args: argparse.Namespace) -> int:
    """Measure the questions that are missing, then summarize."""
    depths = sorted(set(args.depths))
    cuts = [parse_cut(f"{100 - depth}%") for depth in (0, *depths)]
    result = sampling.open_result(args, "pathcheck", continuations.settings(args, cuts))
    continuations.measure(args, result, cuts)
    result.finish(summarize(list(result.parts.values()), depths, args.samples))
    sampling.show(args, result)
    save_plot(result.file, lambda figure, axes: _draw(axes, result.figures), panels=2)
    return 0


def summarize(parts: Sequence[dict[str, Any]], depths: Sequence[int], samples: int) -> dict[str, Any]:
    """By kind of path and depth: success with its interval, change from the bare question, and the poisoned share."""
    return continuations.figures_by_kind(
        parts, lambda members: {f"{depth}%": _at(members, depth, samples) for depth in (0, *depths)}
    )


def poisoned(part: dict[str, Any], depth: int, samples: int) -> bool:
    """Whether continuations from this depth succeed significantly less often than the bare question."""
    there, bare = part["by_cut"][f"{100 - depth}%"], part["by_cut"][_BARE]
    return fewer_by_chance(there["right"], samples, bare["right"], samples) < LEVEL


def _at(parts: Sequence[dict[str, Any]], depth: int, samples: int) -> dict[str, float]:
    right = [part["by_cut"][f"{100 - depth}%"]["right"] for part in parts]
    bare = [part["by_cut"][_BARE]["right"] for part in parts]
    change = continuations.intervals((r - b) / samples for r, b in zip(right, bare, strict=True))
    return continuations.intervals(r / samples for r in right) | {
        "change": change["mean"],
        "change_low": change["low"],
        "change_high": change["high"],
        "poisoned": round(sum(poisoned(part, depth, samples) for part in parts) / len(parts), 4) if depth else 0.0,
        "all_fail": round(right.count(0) / len(parts), 4),
        **(_known(parts, depth, samples) if depth else {}),
    }


def _known(parts: Sequence[dict[str, Any]], depth: int, samples: int) -> dict[str, float | None]:
    """On the testbed: the share of prefixes with a wrong step, and the poisoned shares with and without one."""
    name = f"{100 - depth}%"
    if "mistake" not in parts[0]["by_cut"][name]:
        return {}
    called: dict[bool, list[bool]] = {True: [], False: []}
    for part in parts:
        called[part["by_cut"][name]["mistake"]].append(poisoned(part, depth, samples))
    shares = {kind: round(sum(members) / len(members), 4) if members else None for kind, members in called.items()}
    return {
        "with_mistake": round(len(called[True]) / len(parts), 4),
        "poisoned_of_mistaken": shares[True],
        "poisoned_of_sound": shares[False],
    }


def _draw(axes: Any, figures: dict[str, Any]) -> None:
    continuations.draw(axes[0], figures, lambda name, row: int(name.removesuffix("%")))
    continuations.draw(axes[1], figures, lambda name, row: int(name.removesuffix("%")), "poisoned")
    axes[0].set(title="Success of continuations", xlabel="percent of the path kept (0: bare question)", ylim=(0, 1.02))
    axes[1].set(title="Poisoned prefixes (p < 0.05)", xlabel="percent of the path kept", ylim=(0, 1.02))
