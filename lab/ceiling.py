"""The mistakes that a trained policy still makes on held-out questions, by kind of state.

The testbed's base model makes two kinds of mistakes that training can fix, both from terse steps (in hasty states and
traps); training can only add a third: slips in steps written out in full. Every model answers the held-out questions once
from the bare question at temperature 1.

    make bench NAME=ceiling QUICK=1                              the base model alone
    python -m lab.bench frontier --arms grpo rpo --seeds 0 1     trains the models
    python -m lab.bench ceiling --arms grpo rpo --seeds 0 1

The figures: arm -> seed -> accuracy, and for each kind of step the share that is terse, the share that is wrong, and the
share that is wrong among those written out.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lab.arms import Arm, arms
from lab.bench import about, header, table, write_report
from lab.testbed import LEVELS, model_dir
from lab.testbed.measure import Sample, load, sample
from lab.testbed.task import draw_split, written_steps
from openrlhf_rpo.errors import UsageError

KINDS = ("ordinary", "hasty", "trap")
N_QUESTIONS = 256


def by_kind(samples: Sequence[Sample], level: str) -> dict:
    """Accuracy, and the shares of terse and wrong steps by kind of state."""
    steps = [step for s in samples for step in written_steps(s.text, LEVELS[level].habits)]
    figures: dict = {"accuracy": share([s.right for s in samples])}
    for kind in KINDS:
        of_kind = [step for step in steps if step.kind == kind]
        figures[kind] = {
            "steps": len(of_kind),
            "terse": share([step.terse for step in of_kind]),
            "wrong": share([not step.right for step in of_kind]),
            "wrong_in_full": share([not step.right for step in of_kind if not step.terse]),
        }
    return figures


def share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def measure(model: Path, level: str) -> dict:
    """The figures of a saved model."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    loaded, tokenizer = load(model)
    return by_kind(sample(loaded, tokenizer, draw_split(level, N_QUESTIONS, 0, heldout=True), 1.0, 0), level)


def trained(runs: Path, level: str, arm: Arm, seed: int) -> Path:
    """The model of a frontier run. Raises UsageError if it is missing."""
    model = runs / level / f"{arm.label}-{arm.steps}" / f"seed{seed}" / "model"
    if not model.exists():
        raise UsageError(f"{model} is missing: `python -m lab.bench frontier --arms {arm.name} --seeds {seed}` trains it")
    return model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--level", default="main", choices=sorted(LEVELS))
    parser.add_argument("--arms", nargs="+", default=["grpo", "rpo", "verify"], choices=arms("main"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--runs", type=Path, default=Path("runs/frontier"), help="folder of the frontier's runs")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The base model and the trained ones."""
    chosen = [] if args.quick else [(arms(args.level)[name], seed) for name in args.arms for seed in args.seeds]
    models = {(arm.name, seed): trained(args.runs, args.level, arm, seed) for arm, seed in chosen}
    measured: dict[str, Any] = {"base": {"-": measure(model_dir(args.level), args.level)}}
    for (name, seed), model in tqdm(models.items(), unit="model"):
        measured.setdefault(name, {})[str(seed)] = measure(model, args.level)
    figures = about() | {"level": args.level, "questions": N_QUESTIONS, "arms": measured}
    write_report(args.report, figures, page(figures))
    return figures


def page(figures: Mapping[str, Any]) -> list[str]:
    """The report as Markdown."""
    lines = header("What is still wrong at the end", dict(figures))
    lines += [f"Level {figures['level']}, {figures['questions']} held-out questions, one sample each at temperature 1.", ""]
    rows = []
    for arm, by_seed in figures["arms"].items():
        for seed, f in by_seed.items():
            cells = [", ".join(shown(f[k][x]) for x in ("terse", "wrong", "wrong_in_full")) for k in KINDS]
            rows.append([f"{arm}, {seed}", f"{f['accuracy']:.3f}", *cells])
    return lines + table(["arm, seed", "accuracy", *(f"{k}: terse, wrong, wrong in full" for k in KINDS)], rows)


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
