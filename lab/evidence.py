"""Full answers against reused ones, every arm tuned alike: the accuracy that generated tokens buy.

A level of the testbed (in ``lab/real/bench.py``: a family) has three sets of questions: those to train on, 128 held-out ones
for every choice (validation), and 128 others that only the report sees (test; ``--test-set 2`` takes the next 128, for a
report prompted by the results of another). Every run is one of the frontier's (``lab/frontier.py``): the real command, arms
alternating seed by seed, the same number of samples: ``--steps`` counts steps of 32; smaller steps are more numerous.

1. Tuning: every arm is trained with the same learning rates, batch shapes (questions, samples of each, and how many of them
   an update trains on), passes over a batch, and seeds. The cell with the highest validation accuracy is chosen: the
   policy's mean over the seeds and over the evaluations in the second half of a run (which has half as many as in the
   report). With ``--tune-on``, one level's choice holds for all. With one of each, or with ``--cells``, nothing is tuned.
2. Report: the chosen cell of every arm with fresh seeds, on the test questions: accuracy of the policy, along the way and at
   the end (one sample a question), and of the averaged weights, which every arm keeps, at the end (eight; ``--samples 1 0``
   leaves them out). Arms that reuse answers generate less per step: ``--reuse-steps`` gives them more steps.

Each arm is compared seed by seed with the best arm on full answers by validation accuracy (the first, where nothing was
tuned): mean differences with 95 % intervals by bootstrap over the seeds (``over_seeds``), on these questions. Budgets and
accuracies that a run passes before its first evaluation, or does not reach, are left out: nothing was measured.

    make bench NAME=evidence QUICK=1
    python -m lab.bench evidence --levels hard --tune               only the first part; finished runs are not run again
    python -m lab.bench evidence --levels hard --report FILE
"""

import argparse
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from lab import frontier
from lab.arms import Arm
from lab.bench import about, header, table, write_report
from lab.curves import Curve, cost_to, first_of, mean_curve, spread
from lab.plot import save_plot
from lab.real.families import STRETCH
from lab.testbed import LEVELS
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.evaluation.bootstrap import Interval, interval
from openrlhf_rpo.reports.comparison import at

FULL = {"grpo": "grpo_alone", "dapo": "dapo", "raft": "raft"}
"""Arms on full answers: their name here, and the frontier's."""
REUSE = {"rpo": "rpo_raft", "verify": "verify_raft", "paper": "paper"}
NAMES = FULL | REUSE
SAMPLES = 32
"""Samples of a step that ``--steps`` counts."""
TEST_SETS = STRETCH["train"] // frontier.N_HELDOUT - 1
"""After validation, and before the questions that a family trains on."""
ACCURACIES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def add_arguments(parser: argparse.ArgumentParser, out: str = "runs/evidence", levels: Collection[str] = LEVELS) -> None:
    parser.add_argument("--arms", nargs="+", default=["grpo", "raft", "rpo", "verify"], choices=list(NAMES))
    parser.add_argument("--lr", nargs="+", type=float, help="learning rates to choose from (default: %(default)s)")
    parser.add_argument("--tuning-seeds", nargs="+", type=int, default=[100, 101], help="(default: %(default)s)")
    parser.add_argument("--tune", action="store_true", help="only choose, and report what was tried")
    parser.add_argument("--tune-on", choices=levels, help="choose on this level for all (default: on each its own)")
    words = (
        "the report's arms with cells chosen before, in place of --arms, --lr, --shape and --passes; the best comes first"
    )
    parser.add_argument("--cells", nargs="+", metavar="ARM=CELL@LR", default=[], help=words)
    parser.add_argument("--reuse-steps", type=int, metavar="N", help="as --steps, for the report's arms that reuse answers")
    words = f"the report's questions: set N of {TEST_SETS} (default: %(default)s)"
    parser.add_argument("--test-set", type=int, choices=range(1, TEST_SETS + 1), default=1, metavar="N", help=words)
    frontier.add_run_arguments(parser, out, levels)
    parser.set_defaults(seeds=list(range(900, 908)), questions=512, evaluations=8, samples=[1, 8], steps=16)
    parser.set_defaults(lr=[2.5e-4, 5e-4, 1e-3], shape=["8x4", "32x1"])


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Tune, then report. Raises UsageError if tuning has to be finished first."""
    if args.quick:
        args.levels, args.seeds, args.tuning_seeds, args.arms = ["main"], [0], [0], ["raft"]
        args.lr, args.shape, args.steps, args.evaluations, args.samples = [5e-4], ["4x4"], 1, 1, [1, 1]
    return measure(args)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures: of the tuning and, unless ``args.tune``, of the report."""
    tried, chosen = given(args) if args.cells else tuned(args)
    figures = about() | {"levels": {level: _tuned(tried[level], chosen[level]) for level in args.levels}}
    if not args.tune:
        places = {"out": args.out / "report", "held_out_after": args.test_set * frontier.N_HELDOUT}
        report = _changed(args, **places, lr=None, shape=None, passes=[1])
        longer = (args.reuse_steps or args.steps) / args.steps
        lasting = {level: [lengthened(arm, longer) for arm in some] for level, some in chosen.items()}
        measured = frontier.measure(report, lasting)
        figures["code"] = measured["code"]
        for level, found in measured["levels"].items():
            figures["levels"][level] |= compared(found, figures["levels"][level], bool(args.samples[1]))
    write_report(args.report, figures, page(figures, None if args.tune else args.report))
    if args.report and not args.tune:
        plot(figures["levels"], args.report)
    return figures


def _changed(args: argparse.Namespace, **changes: object) -> argparse.Namespace:
    """A copy of the arguments with changes."""
    return argparse.Namespace(**{**vars(args), **changes})


# ── Tuning ──


def tuned(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[Arm]]]:
    """What was tried on each level (nothing, with one cell per arm), and the chosen cell of each arm."""
    tuning = _changed(args, out=args.out / "tuning", seeds=args.tuning_seeds, samples=[args.samples[0], 0])
    tuning.arms, tuning.evaluations = [NAMES[name] for name in args.arms], max(1, args.evaluations // 2)
    tuning.levels = [args.tune_on] if args.tune_on else args.levels
    if len(args.lr) * len(args.shape) * len(args.passes) > 1 or args.tune:
        tried = frontier.measure(tuning, {at: cells(tuning, at) for at in tuning.levels})["levels"]
    else:
        tried = {at: {} for at in tuning.levels}
    where = {level: args.tune_on or level for level in args.levels}
    chosen = {level: [choose(at, name, tried[at], tuning) for name in tuning.arms] for level, at in where.items()}
    return {level: tried[at] for level, at in where.items()}, chosen


def given(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[Arm]]]:
    """As ``tuned``, with the cells of ``--cells``. Raises UsageError for a malformed one, and with ``--tune``."""
    if args.tune:
        raise UsageError("--cells are those of a report: leave out --tune, or --cells")
    if len({text.partition("=")[0] for text in args.cells}) < len(args.cells):
        raise UsageError(f"--cells {' '.join(args.cells)}: one cell an arm")
    chosen = {level: [_given(text, args, level) for text in args.cells] for level in args.levels}
    return {level: {} for level in args.levels}, chosen


def _given(text: str, args: argparse.Namespace, level: str) -> Arm:
    found = re.fullmatch(r"(\w+)=(\w+)(?:-(\d+)passes)?@(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    if not found or found[1] not in NAMES:
        form = "ARM=QxS@LR, such as raft=32x1@2.5e-4 or raft=32x1by4-2passes@2.5e-4"
        raise UsageError(f"--cells {text}: {form}, with an arm of {', '.join(NAMES)}")
    one = {"arms": [NAMES[found[1]]], "shape": [found[2]], "passes": [int(found[3] or 1)], "lr": [float(found[4])]}
    (cell,) = cells(_changed(args, **one), level)
    return cell


def cells(args: argparse.Namespace, level: str) -> list[Arm]:
    """The arms in every learning rate, shape and number of passes, all with the same number of samples per run."""
    found = frontier.varied(args, level)
    return [replace(arm, steps=max(1, round(args.steps * SAMPLES / (arm.questions * arm.samples)))) for arm in found]


def choose(level: str, name: str, tried: Mapping[str, Any], tuning: argparse.Namespace) -> Arm:
    """The cell of an arm with the highest score; the only one where nothing was tried.

    Raises UsageError if one of them lacks a seed (``--finished``).
    """
    grid = cells(_changed(tuning, arms=[name]), level)
    if not tried:
        return grid[0]
    for cell in grid:
        if set(tried.get(cell.label, {}).get("seeds", [])) != set(tuning.seeds):
            raise UsageError(f"{cell.label} on level {level} is not tuned: the same command without --finished does it")
    return max(grid, key=lambda cell: score(tried[cell.label]))


def lengthened(arm: Arm, times: float) -> Arm:
    """The arm with ``times`` as many steps if it reuses answers, and so generates fewer tokens per step."""
    return replace(arm, steps=round(times * arm.steps)) if arm.name in REUSE.values() else arm


def score(tried: Mapping[str, Any]) -> float:
    """Mean accuracy over the seeds, in the evaluations of the second half of each run."""
    return fmean(fmean(a for _, a in second_half(one["curve"])) for one in tried["by_seed"].values())


def second_half(curve: Curve) -> Curve:
    return curve[len(curve) // 2 :] if len(curve) > 1 else curve


def _tuned(tried: Mapping[str, Any], chosen: Sequence[Arm]) -> dict[str, Any]:
    found = {label: one for label, one in tried.items() if label != "base"}
    return {
        "tuning": {label: round(score(one), 4) for label, one in found.items()},
        "tuning_tokens": {label: one["generated_tokens"] for label, one in found.items()},
        "chosen": {arm.name: arm.label for arm in chosen},
    }


# ── Report ──


def compared(found: Mapping[str, Any], level: Mapping[str, Any], averaged: bool) -> dict[str, Any]:
    """The figures of every arm, and the others' differences from the best arm on full answers.

    ``found``: the frontier's figures of the level; ``level``: what tuning says of it; ``averaged``: whether the averaged
    weights were evaluated.
    """
    full = [short for name in level["chosen"] for short in FULL if FULL[short] == name]
    best = max(full, key=lambda short: level["tuning"].get(level["chosen"][FULL[short]], 0.0), default=None)
    own = {short: found[name] for short, name in NAMES.items() if name in found}
    base = own.get(best)
    return {
        "base": found["base"],
        "baseline": base and best,
        "arms": {
            name: _summary(one, averaged) | ({"against": _against(one, base, averaged)} if base and name != best else {})
            for name, one in own.items()
        },
    }


def _summary(one: Mapping[str, Any], averaged: bool) -> dict[str, Any]:
    runs = one["by_seed"]
    curves = [run["curve"] for run in runs.values()]
    reached = {str(a): cost_to(curves, a) for a in ACCURACIES}
    quiet = [run["seconds"] for run in runs.values() if run["quiet"]]
    return {
        "steps": one["steps"],
        "steps_made": one["steps_made"],
        "averaged": _spread([run["accuracy"] for run in runs.values()]) if averaged else None,
        "policy": _spread([curve[-1][1] for curve in curves]),
        "tokens": _spread([run["tokens"] for run in runs.values()]),
        "kept": _spread([run["kept"] for run in runs.values()]),
        "seconds": _spread(quiet) if quiet else None,
        "phases": one["phases"] if len(quiet) == len(runs) else None,
        "at_tokens": one["at_tokens"],
        "tokens_to": {a: _spread(found) for a, found in reached.items() if found},
        "runs": runs,
    }


def _spread(values: Sequence[float]) -> list[float]:
    """Mean, standard deviation (0 for one value), number."""
    return [round(fmean(values), 4), round(spread(values), 4), len(values)]


def _against(one: Mapping[str, Any], base: Mapping[str, Any], averaged: bool) -> dict[str, Any]:
    """Differences in accuracy and ratios of tokens and (where nothing else ran) of seconds, over the seeds that both have;
    accuracy also at every budget between the first evaluation and the end of all. Empty without such a seed."""
    pairs = [(one["by_seed"][seed], base["by_seed"][seed]) for seed in one["by_seed"] if seed in base["by_seed"]]
    if not pairs:
        return {}
    evaluated = max(first_of(run["curve"]) for pair in pairs for run in pair)
    spent = min(run["curve"][-1][0] for pair in pairs for run in pair)
    timed = [pair for pair in pairs if all(run["quiet"] for run in pair)]
    found = {
        **({"averaged": [ours["accuracy"] - theirs["accuracy"] for ours, theirs in pairs]} if averaged else {}),
        "policy": [ours["curve"][-1][1] - theirs["curve"][-1][1] for ours, theirs in pairs],
        "tokens": [ours["tokens"] / theirs["tokens"] for ours, theirs in pairs],
        **({"seconds": [ours["seconds"] / theirs["seconds"] for ours, theirs in timed]} if timed else {}),
        **{
            f"at {budget // 1000}k": [at(ours["curve"], budget) - at(theirs["curve"], budget) for ours, theirs in pairs]
            for budget in frontier.BUDGETS
            if evaluated <= budget <= spent
        },
    }
    return {name: _rounded(over_seeds(values)) for name, values in found.items()}


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean over seeds with its 95 % interval: bootstrap, with wider percentiles for few seeds; for fewer than eight,
    the smallest and the largest value.

    Percentiles of 2.5 % hold the mean of eight values in nine of ten cases. Ours make the interval as wide as Student's
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 4.4; t by Cornish and Fisher).
    """
    n = len(values)
    if n < 8:  # the bootstrap cannot be wide enough: its means lie between these
        return Interval(fmean(values), min(values), max(values))
    z, free = NormalDist().inv_cdf(0.975), n - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return interval(values, tail=NormalDist().cdf(-t * sqrt(n / free)))


def _rounded(found: Interval) -> list[float]:
    return [round(value, 4) for value in (found.mean, found.low, found.high)]


def plot(levels: Mapping[str, Any], report: Path) -> None:
    """Accuracy of the policy against generated tokens, a panel per level: thin lines are seeds, thick ones means."""

    def draw(figure: Any, axes: Any) -> None:
        for axis, (level, found) in zip(axes if len(levels) > 1 else [axes], levels.items(), strict=True):
            for number, (name, one) in enumerate(found["arms"].items()):
                curves, style = [run["curve"] for run in one["runs"].values()], {"color": f"C{number}", "marker": "."}
                for curve in curves:
                    axis.plot(*zip(*curve, strict=True), **style, lw=0.6, alpha=0.25)
                axis.plot(*zip(*mean_curve(curves), strict=True), **style, lw=2, label=name)
            axis.set(xlabel="generated tokens", ylabel="accuracy on test questions", ylim=(0, 1), title=f"level {level}")

    save_plot(report, draw, panels=len(levels))


def page(figures: Mapping[str, Any], report: Path | None) -> list[str]:
    """The report as Markdown, without conclusions."""
    alike = "tuned alike" if any(found["tuning"] for found in figures["levels"].values()) else "one cell an arm"
    lines = header(f"Full answers and reused ones, {alike}", dict(figures))
    lines += [f"![accuracy against generated tokens]({report.stem}.png)", ""] if report else []
    for level, found in figures["levels"].items():
        if "arms" in found:
            lines += [f"## Level {level} (base accuracy {found['base']:.3f})", "", *_results(found), *_tuning(found)]
        else:
            lines += [f"## Level {level}", "", *_tuning(found)]
    return lines


def _results(found: Mapping[str, Any]) -> list[str]:
    head = ["arm", "chosen", "averaged weights", "policy", "generated tokens", "kept tokens", "seconds of steps"]
    head += [f"tokens to {a:g}" for a in ACCURACIES]
    rows = [
        [
            name,
            f"{found['chosen'][NAMES[name]].removeprefix(f'{NAMES[name]}-')}, {_steps(one)}",
            *(_cell(one[what], "{:.3f} ± {:.3f} ({})") for what in ("averaged", "policy")),
            *(_cell(one[what], "{:,.0f} ± {:,.0f}") for what in ("tokens", "kept")),
            _cell(one["seconds"], "{:.0f} ± {:.0f} ({})"),
            *(_cell(one["tokens_to"].get(str(a)), "{:,.0f} ± {:,.0f}") for a in ACCURACIES),
        ]
        for name, one in found["arms"].items()
    ]
    words = (
        "Test questions; mean ± standard deviation (seeds). Kept tokens are those of stored paths that samples went on "
        "from; `verify` reads the whole paths."
    )
    lines = [words, "", *table(head, rows), ""]
    if timed := {name: one["phases"] for name, one in found["arms"].items() if one["phases"]}:
        phases = [frontier.phases_of(name, one) for name, one in timed.items()]
        lines += ["Seconds of a step by phase (mean):", "", *phases, ""]
    if against := {name: one["against"] for name, one in found["arms"].items() if one.get("against")}:
        names = list(dict.fromkeys(figure for one in against.values() for figure in one))
        form = "{:.3f} ({:.3f} to {:.3f})"
        rows = [[name, *(_cell(one.get(figure), form) for figure in names)] for name, one in against.items()]
        words = "differences in accuracy, ratios of tokens and seconds, mean (95 % interval; below eight seeds: the range)"
        lines += [f"Against `{found['baseline']}`, the best arm on full answers: {words}.", ""]
        lines += [*table(["arm", *names], rows), ""]
    return lines


def _steps(one: Mapping[str, Any]) -> str:
    """The number of steps, and of those made if that differs."""
    made = one["steps_made"]
    if made == [one["steps"]]:
        return f"{one['steps']} steps"
    return f"{' to '.join(map(str, sorted({made[0], made[-1]})))} of {one['steps']} steps"


def _tuning(found: Mapping[str, Any]) -> list[str]:
    if not found["tuning"]:
        return ["Nothing was tuned here: one cell an arm.", ""]
    chosen, tokens = found["chosen"].values(), found["tuning_tokens"]
    rows = [
        [cell, f"{value:.3f}", f"{tokens[cell]:,}", "chosen" if cell in chosen else ""]
        for cell, value in found["tuning"].items()
    ]
    head = ["cell", "accuracy", "generated tokens", ""]
    return ["Validation accuracy in the second half of the run.", "", *table(head, rows), ""]


def _cell(values: Sequence[float] | None, form: str) -> str:
    return form.format(*values) if values else "-"
