"""Held-out accuracy of each method against generated tokens and against seconds.

Every run uses the real command (Ray, DeepSpeed, vLLM) on the testbed's base models, or on SmolLM2 (``lab/tasks.py``).
Accuracy is from the bare question at temperature 1: during training (--eval.steps), and of the trained model with 8 samples
per question (`openrlhf-rpo eval`), which also gives pass@8 (--samples). Generated tokens are all those sampled for training,
including the initial cache but not evaluations, nor the few that ``--rpo.tail`` drops. Seconds are those of training steps
(rollout, rewards, forward passes, optimizer, weight sync, reading the cache), without start-up, evaluations and the commit
of a step to the cache, which takes some 20 ms here.

    make bench NAME=frontier QUICK=1                                 one arm, one level, a few steps
    python -m lab.bench frontier --seeds 0 1 2 --report FILE         finished runs are not run again
    python -m lab.bench frontier --arms rpo --seeds 100 --lr 1e-4 3e-4 --shape 8x4 16x4    tune on a separate seed

The figures: level -> arm -> accuracy, accuracy_sd, pass_at_8, tokens_per_sample, generated_tokens, seconds, and each run's
curve.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lab.arms import BATCH, PASSES, Arm, arms
from lab.bench import about, header, table, write_report
from lab.command import GRPO, option_words
from lab.curves import at_tokens, mean_curve, spread
from lab.figures import RunFigures, read_run
from lab.plot import save_plot
from lab.runs import Run, Variant, finished, record_of, words_of
from lab.tasks import Task, task
from lab.testbed import LEVELS
from lab.training import Job, in_turn, to_train
from openrlhf_rpo.errors import Failed, UsageError
from openrlhf_rpo.run.files import contents_of

N_HELDOUT = 128
MICRO_BATCH = 16
COLUMNS = (
    *("arm", "shape, lr", "accuracy at the end", "pass@8", "tokens per sample", "generated tokens", "seconds of steps"),
    *("truncated", "groups without variance"),
)
BUDGETS = (5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000)
BASE = {
    **GRPO,
    "eval.temperature": 1.0,
    "actor.lr_scheduler": "constant",
    "ckpt.best_metric_key": "none",
}


@dataclass(frozen=True)
class Cell:
    """An arm on a level, with the run that trains it."""

    level: str
    arm: Arm
    job: Job

    @property
    def seed(self) -> int:
        return self.job.run.seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arms", nargs="+", default=["raft", "rpo_raft", "verify_raft"], choices=arms("main"))
    parser.add_argument("--lr", nargs="+", type=float, help="learning rates to try instead of each arm's own")
    add_run_arguments(parser, "runs/frontier")
    parser.set_defaults(seeds=[0, 1, 2], questions=128, evaluations=8)


def add_run_arguments(parser: argparse.ArgumentParser, out: str, levels: Collection[str] = LEVELS) -> None:
    """Which runs, and where they are kept; the caller sets the defaults of ``seeds``, ``questions`` and ``evaluations``."""
    parser.add_argument("--levels", nargs="+", default=list(levels), choices=levels)
    parser.add_argument("--seeds", nargs="+", type=int, help="(default: %(default)s)")
    words = "questions x samples per step to try, same total; by N: in updates of N samples"
    parser.add_argument("--shape", nargs="+", metavar="QxS[byN]", help=words)
    parser.add_argument("--passes", nargs="+", type=int, default=[1], help="over a batch in training, to try (default: 1)")
    parser.add_argument("--steps", type=int, help="length of every run (default: each arm's own)")
    parser.add_argument("--questions", type=int, help="at most so many to train on (default: %(default)s)")
    parser.add_argument("--evaluations", type=int, help="evaluations per run (default: %(default)s)")
    parser.add_argument(
        "--samples",
        nargs=2,
        type=int,
        default=[1, 8],
        metavar=("ALONG", "END"),
        help="of each held-out question: in evaluations during training, and of the trained model, which 0 leaves out "
        "(default: %(default)s)",
    )
    words = "options of the training command for every arm"
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME=VALUE", help=f"{words}, such as rpo.drafts=auto")
    parser.add_argument("--out", type=Path, default=Path(out), help="runs are kept here and reused (default: %(default)s)")
    words = "so many runs at a time, and no seconds that count (default: %(default)s)"
    parser.add_argument("--at-once", type=int, choices=range(1, 33), default=1, metavar="N", help=words)
    parser.add_argument("--finished", action="store_true", help="report finished runs only, start none")
    parser.set_defaults(held_out=N_HELDOUT, held_out_after=0)


def asked(**changes: object) -> argparse.Namespace:
    """The arguments of ``add_run_arguments``, with changes."""
    parser = argparse.ArgumentParser()
    add_run_arguments(parser, "")
    parser.set_defaults(**changes)
    return parser.parse_args([])


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and write the report."""
    if args.quick:
        args.levels, args.seeds, args.arms, args.evaluations, args.steps = ["main"], [0], ["rpo"], 1, 8
    figures = measure(args)
    write_report(args.report, figures, page(figures, args.report))
    if args.report:
        plot(figures["levels"], args.report.with_suffix(".png"))
    return figures


def measure(args: argparse.Namespace, chosen: Mapping[str, Sequence[Arm]] | None = None) -> dict[str, Any]:
    """The figures of all runs, after training and evaluating the unfinished ones.

    ``chosen``: the arms of each level, instead of those of ``args`` in every requested shape and learning rate.
    """
    chosen = chosen or {level: varied(args, level) for level in args.levels}
    # Seed by seed with alternating arms, so that drift of the machine affects all arms alike.
    cells = [cell(args, level, arm, seed) for seed in args.seeds for level, some in chosen.items() for arm in some]
    if args.finished:
        cells = [one for one in cells if finished(one.job.run)]
    list(in_turn(to_train(one.job for one in cells), args.at_once))
    results = [(one, figures_of(one, args.samples[1])) for one in cells]
    code = sorted({digest for one in cells for digest in record_of(one.job.run).get("code", ["unknown"])})
    levels: dict[str, Any] = {}
    several = args.lr or args.shape or args.passes != [1]
    for level, some in chosen.items():
        on_level = [figures for one, figures in results if one.level == level]
        if not on_level:
            raise UsageError(f"level {level}: no run is finished: the same command without --finished trains them")
        known = None if args.held_out_after else task(level).accuracy
        levels[level] = {"base": known if known is not None else base_accuracy(on_level)}
        for arm in some:
            if found := [figures for one, figures in results if (one.level, one.arm) == (level, arm)]:
                levels[level][arm.label if several else arm.name] = summarize(found, arm)
    return about() | {"levels": levels, "code": code, "evaluation": _evaluation(*args.samples)}


def varied(args: argparse.Namespace, level: str) -> list[Arm]:
    """The arms of a level in every requested shape, learning rate and number of passes. Raises UsageError if no shape fits
    an arm."""
    found = []
    for name, lr, shape, passes in itertools.product(args.arms, args.lr or [None], args.shape or [None], args.passes):
        arm = arms(level)[name]
        if shape is not None:
            questions, samples, batch = _shape(shape)
            if samples == 1 and "algo.advantage.estimator" not in arm.options:
                continue  # the default, group_norm, compares the samples of a question
            steps = max(1, round(arm.steps * arm.questions * arm.samples / (questions * samples)))
            arm = replace(arm, questions=questions, samples=samples, steps=steps)
            arm = arm.named(name, {BATCH: batch}) if batch else arm
        if passes != 1:
            arm = arm.named(name, {PASSES: passes})
        found.append(replace(arm, lr=lr or arm.lr, steps=args.steps or arm.steps))
    for name in args.arms:
        if not any(arm.name == name for arm in found):
            raise UsageError(
                f"--shape {' '.join(args.shape)}: {name} compares samples, add one of 2 or more a question, like 8x4"
            )
    return found


def _shape(text: str) -> tuple[int, int, int]:
    """Questions, samples of each, and samples per update: 0 for all of a step."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:by([1-9]\d*))?", text)
    if not found:
        raise UsageError(f"--shape {text}: questions x samples, such as 8x4, or 8x4by16 in updates of 16 samples")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not (name and value):
        raise UsageError(f"--also {text}: NAME=VALUE, such as rpo.drafts=auto")
    return name, value


def cell(args: argparse.Namespace, level: str, arm: Arm, seed: int) -> Cell:
    """Write the data of an arm's run, and build its command."""
    out = args.out.resolve() / level
    episodes = -(-arm.steps * arm.questions // args.questions)
    needed, on = arm.steps * arm.questions // episodes, task(level)
    data = out / "data" / (f"{needed}-{args.held_out_after}" if args.held_out_after else str(needed))
    train, held_out = on.write(data, needed, args.held_out, args.held_out_after)
    size = arm.questions * arm.samples
    options = {
        **on.options,
        **BASE,
        "actor.model_name_or_path": on.model,
        "data.prompt_dataset": train,
        "eval.dataset": held_out,
        "eval.n_samples_per_prompt": args.samples[0],
        "eval.steps": -(-arm.steps // args.evaluations),
        "rollout.batch_size": arm.questions,
        "rollout.n_samples_per_prompt": arm.samples,
        BATCH: size,
        "rollout.micro_batch_size": min(MICRO_BATCH, size),
        "train.micro_batch_size": min(MICRO_BATCH, int(arm.options.get(BATCH, size))),
        "train.num_episodes": episodes,
        "actor.adam.lr": arm.lr,
        **{name: str(v).format(data=data) if isinstance(v, str) else v for name, v in arm.options.items()},
        **dict(_pair(text) for text in args.also),
    }
    variant = Variant(arm.label, options)
    training = Run(variant, seed, out / f"{arm.label}-{arm.steps}" / f"seed{seed}")
    named = {str(value).rpartition(":")[0] or str(value) for value in options.values()}  # a method is FILE.py:NAME
    content = contents_of(str(on.model), *sorted(name for name in named if Path(name).is_file()))
    return Cell(level, arm, Job(training, words_of([], training), content))


def figures_of(one: Cell, samples: int) -> dict[str, Any]:
    """The curve (generated tokens, seconds of steps, accuracy), the means over the steps, and the final figures.

    With 0 ``samples`` of the trained model, the final figures are those of the last evaluation.
    """
    folder = one.job.run.folder
    figures = read_run(folder, record_of(one.job.run))
    without = [step.no_variance for step in figures.steps if step.no_variance is not None]
    tokens, clock = _cumulated(figures)
    curve = [(tokens[step], clock[step], accuracy) for step, accuracy, _ in figures.evaluations]
    last = {"accuracy": curve[-1][2], "pass_at_k": {}, "tokens": figures.evaluations[-1][2]}
    return {
        "seed": one.seed,
        "steps": len(figures.steps),
        "curve": curve,
        "generated_tokens": tokens[figures.steps[-1].step],  # plain OpenRLHF's last evaluation may be earlier
        "kept_tokens": round(sum(step.prefix * step.samples for step in figures.steps)),
        "seconds": clock[figures.steps[-1].step],
        "quiet": figures.quiet,
        "overlap": figures.overlap(),
        "tokens_per_sample": figures.generated,
        "truncated": figures.truncated,
        "no_variance": fmean(without) if without else None,
        "phases": {phase: total / len(figures.steps) for phase, total in figures.seconds().items()},
        "end": end_figures(folder, one.job.data, samples, task(one.level)) if samples else last,
    }


def _cumulated(figures: RunFigures) -> tuple[dict[int, int], dict[int, float]]:
    """Step -> generated tokens so far, and step -> seconds so far."""
    tokens, clock = {0: figures.initial_tokens}, {0: 0.0}
    for step in figures.steps:
        tokens[step.step] = tokens[step.step - 1] + step.tokens
        clock[step.step] = clock[step.step - 1] + step.seconds["step_total"]
    return tokens, clock


def end_figures(folder: Path, data: Mapping[str, str], samples: int, on: Task) -> dict[str, Any]:
    """Evaluate the trained model once on the held-out questions, with ``samples`` each. Raises Failed."""
    place = folder / f"end-{samples}"
    held_out = next(name for name in data if name.endswith("heldout.jsonl"))
    asked = ["--data", held_out, "--samples", samples, "--temperature", 1, "--out", place]
    command = [sys.executable, "-m", "openrlhf_rpo.cli.main", "eval", folder / "model", *asked, *option_words(on.options)]
    if not any(json.loads(file.read_text())["figures"] for file in place.glob("*.json")):  # missing or interrupted
        with place.with_suffix(".txt").open("w") as log:
            status = subprocess.run([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT).returncode
        if status:
            raise Failed(f"the evaluation of {folder} ended with status {status}, see {log.name}")
    [result] = place.glob("*.json")
    return json.loads(result.read_text())["figures"]


def summarize(results: Sequence[Mapping[str, Any]], arm: Arm) -> dict[str, Any]:
    """Means and standard deviations over seeds: final figures, and accuracy at each budget of generated tokens that lies
    between the first evaluation and the end of every run."""
    finals = [r["end"]["accuracy"] for r in results]
    pass_at_8 = [r["end"]["pass_at_k"]["8"] for r in results if "8" in r["end"]["pass_at_k"]]
    at_budget = {}
    for budget in BUDGETS:
        values = [at_tokens([(t, a) for t, _, a in r["curve"]], budget) for r in results]
        if None not in values:
            at_budget[str(budget)] = [round(fmean(values), 4), round(spread(values), 4), len(values)]
    without = [r["no_variance"] for r in results if r["no_variance"] is not None]
    return {
        "accuracy": round(fmean(finals), 4),
        "accuracy_sd": round(spread(finals), 4),
        "pass_at_8": round(fmean(pass_at_8), 4) if pass_at_8 else None,
        "pass_at_8_sd": round(spread(pass_at_8), 4),
        "tokens_per_sample": round(fmean(r["tokens_per_sample"] for r in results), 1),
        "generated_tokens": round(fmean(r["generated_tokens"] for r in results)),
        "seconds": round(fmean(r["seconds"] for r in results), 1),
        "truncated_rate": round(fmean(r["truncated"] for r in results), 4),
        "groups_without_variance": round(fmean(without), 4) if without else None,
        "phases": {k: round(fmean(r["phases"].get(k, 0.0) for r in results), 3) for k in results[0]["phases"]},
        "at_tokens": at_budget,
        "seeds": [r["seed"] for r in results],
        "lr": arm.lr,
        "shape": arm.shape,
        "steps": arm.steps,
        "steps_made": sorted({r["steps"] for r in results}),  # fewer where dynamic sampling used up the questions
        "by_seed": {
            r["seed"]: {
                "seconds": r["seconds"],
                "quiet": r["quiet"],
                "overlap": r["overlap"],
                "tokens": r["generated_tokens"],
                "kept": r["kept_tokens"],
                "accuracy": r["end"]["accuracy"],
                "length": r["end"]["tokens"],
                "curve": [(t, a) for t, _, a in r["curve"]],
                "clock": [round(s, 1) for _, s, _ in r["curve"]],
            }
            for r in results
        },
    }


def base_accuracy(results: Sequence[Mapping[str, Any]]) -> float:
    """Accuracy of the initial model: the mean of the runs' evaluations before training. Plain OpenRLHF has none: with such
    runs only, the mean of their first ones."""
    firsts = [r["curve"][0] for r in results]
    return fmean(accuracy for *_, accuracy in [first for first in firsts if not first[1]] or firsts)


# ── The report ──


def plot(levels: Mapping[str, Any], path: Path) -> None:
    """Plot accuracy against tokens and seconds, a row per level; means over seeds, with evaluations as points."""
    names = list(dict.fromkeys(name for by_arm in levels.values() for name in by_arm if name != "base"))

    def draw(figure: Any, axes: Any) -> None:
        for row, (level, by_arm) in zip(axes.reshape(-1, 2), levels.items(), strict=True):
            for (name, s), (column, axis) in itertools.product(by_arm.items(), enumerate(row)):
                if name != "base":
                    runs = s["by_seed"].values()
                    curve = mean_curve([[(t, c, a) for (t, a), c in zip(r["curve"], r["clock"], strict=True)] for r in runs])
                    style = {"color": f"C{names.index(name) % 10}", "ls": "-" if names.index(name) < 10 else "--"}
                    axis.plot([p[column] for p in curve], [p[2] for p in curve], label=name, lw=1.2, marker=".", **style)
            for axis, label in zip(row, ("generated tokens, including initial cache", "seconds of steps"), strict=True):
                axis.set(xlabel=label, ylabel="held-out accuracy at temperature 1", ylim=(0, 1), title=f"level {level}")

    save_plot(path, draw, panels=2, rows=len(levels))


def page(figures: Mapping[str, Any], file: Path | None) -> list[str]:
    """The report as Markdown, two tables per level, without conclusions."""
    lines = header("Accuracy against generated tokens", dict(figures)) + [f"{figures['evaluation']}.", ""]
    lines += [f"![curves]({file.stem}.png)", ""] if file else []
    for level, by_arm in figures["levels"].items():
        rows = {arm: s for arm, s in by_arm.items() if arm != "base"}
        lines += [
            f"## Level {level} (base accuracy {by_arm['base']:.3f})",
            "",
            *table(COLUMNS, [_row(arm, s) for arm, s in rows.items()]),
            "",
            "Accuracy at a budget of generated tokens (linear interpolation; mean ± standard deviation over seeds):",
            "",
            *table(["arm", *(f"{b // 1000}k" for b in BUDGETS)], [_budget_row(arm, s) for arm, s in rows.items()]),
            "",
            "Seconds per step by phase (mean):",
            "",
        ]
        lines += [phases_of(arm, s["phases"]) for arm, s in rows.items()] + [""]
    return lines


def phases_of(arm: str, phases: Mapping[str, float]) -> str:
    """A line of Markdown: seconds of a step by phase, the longest first."""
    return f"- {arm}: " + ", ".join(f"{k} {v:.2f}" for k, v in sorted(phases.items(), key=lambda item: -item[1]))


def _row(arm: str, s: Mapping[str, Any]) -> list[str]:
    return [
        arm,
        f"{s['shape']}, {s['lr']:g}",
        f"{s['accuracy']:.3f} ± {s['accuracy_sd']:.3f} ({len(s['seeds'])})",
        "-" if s["pass_at_8"] is None else f"{s['pass_at_8']:.3f} ± {s['pass_at_8_sd']:.3f}",
        f"{s['tokens_per_sample']:.0f}",
        f"{s['generated_tokens']:,}",
        f"{s['seconds']:.0f}",
        f"{s['truncated_rate']:.1%}",
        "-" if s["groups_without_variance"] is None else f"{s['groups_without_variance']:.0%}",
    ]


def _budget_row(arm: str, s: Mapping[str, Any]) -> list[str]:
    cells = [s["at_tokens"].get(str(b)) for b in BUDGETS]
    return [arm, *(f"{c[0]:.2f} ± {c[1]:.2f} ({c[2]})" if c else "" for c in cells)]


def _evaluation(along: int, end: int) -> str:
    trained = f"{end} of the trained model" if end else "the last of which is the end"
    return f"{N_HELDOUT} held-out questions at temperature 1, samples of each: {along} while training, {trained}"
