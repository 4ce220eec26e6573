"""The files and the statistics that ``openrlhf-rpo data`` writes."""

import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from openrlhf_rpo.console import Output
from openrlhf_rpo.data.answers import kind
from openrlhf_rpo.data.prepare import Dropped, Row
from openrlhf_rpo.rewards.math import math_reward
from openrlhf_rpo.tables import write_rows

_NAMED = 3  # dropped rows shown for each reason; --json has all
_EVAL_STEPS = "10"  # without --eval.steps, training never evaluates


def write(file: Path, rows: Sequence[Row], solutions: bool) -> None:
    """Write question, answer, and solution if asked for; the file is complete or absent. Raises ExchangeError."""
    names = ["question", "answer"] + (["solution"] if solutions else [])
    records = ({name: getattr(row, name) for name in names} for row in rows)
    write_rows(file, records, pa.schema([(name, pa.string()) for name in names]))


def statistics(
    total: int, training: Sequence[Row], held_out: Sequence[Row], dropped: Dropped, lengths: Sequence[int] | None
) -> dict[str, Any]:
    """Counts of rows, answers by kind and solutions that the math reward accepts; prompt lengths in tokens."""
    with_solution = [row for row in training if row.solution]
    bar = tqdm(with_solution, desc="Checking solutions", unit="row", delay=2)
    right = sum(math_reward(row.solution or "", row.answer) > 0 for row in bar)
    return {
        "rows_read": total,
        "training": len(training),
        "held_out": len(held_out),
        "left_out_by_sampling": total - len(training) - len(held_out) - sum(map(len, dropped.rows.values())),
        "dropped": {
            reason: [{"row": number, "what": what} for number, what in rows] for reason, rows in dropped.rows.items()
        },
        "answers": dict(Counter(kind(row.answer) for row in training).most_common()),
        "solutions": {"kept": len(with_solution), "rewarded": right} if training[0].solution is not None else None,
        "prompt_tokens": None if lengths is None else _summary(lengths),
    }


def _summary(lengths: Sequence[int]) -> dict[str, float]:
    ordered = sorted(lengths)
    median, p95 = (ordered[int(share * len(ordered))] for share in (0.5, 0.95))
    return {"mean": round(fmean(ordered), 1), "median": median, "p95": p95, "longest": ordered[-1]}


def show(args: Namespace, out: Output, said: dict[str, Any]) -> None:
    """Print the statistics, and the training options for the files."""
    files = {"training": str(args.out), "held_out": str(args.held_out) if args.held_out else None}
    out_file = str(args.out.resolve())
    options = ["--data.prompt_dataset", out_file, "--data.input_key", "question", "--data.label_key", "answer"]
    if args.held_out:
        options += ["--eval.dataset", str(args.held_out.resolve()), "--eval.steps", _EVAL_STEPS]
    rewarded = bool(args.solution) and said["solutions"]["rewarded"] > 0
    if rewarded:
        options += ["--rpo.init.mode", "import", "--rpo.init.source", f"{out_file}:solution"]
    out.emit({"files": files, **said, "training_options": options})
    out.pairs({name: value for name, value in said.items() if name != "dropped" and value})
    for reason, rows in said["dropped"].items():
        named = "; ".join(f"row {row['row']:,}: {row['what']}" for row in rows[:_NAMED])
        out.line(f"dropped {len(rows):,}: {reason} ({named}{'; ...' if len(rows) > _NAMED else ''})")
    out.line(f"To train on it: {shlex.join(options)}")
    if args.solution and not rewarded:
        out.line("No solution is rewarded, so none can be imported as an initial cache.")
