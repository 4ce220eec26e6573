"""The base model of the families: SmolLM2-135M-Instruct, warmed up on worked solutions of all of them.

As released it solves next to nothing. The warm-up is OpenRLHF's supervised fine-tuning, one pass over short solutions
written by a program; on two cores it takes six minutes with tcmalloc preloaded. The model is kept.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence

from lab import tasks
from lab.command import option_words
from lab.real import add_packages
from lab.real.families import FAMILIES, STRETCH, records
from lab.tasks import CHAT, write_lines
from openrlhf_rpo.errors import Failed

SOLUTIONS = 384
"""Worked solutions of each family in the warm-up."""
WARM_UP = {
    **{name: CHAT[name] for name in ("data.input_key", "data.apply_chat_template", "data.max_len")},
    "data.output_key": "solution",
    "train.max_epochs": 1,
    "train.batch_size": 16,
    "train.micro_batch_size": 4,
    "adam.lr": 2e-4,
}


def make(solutions: int = SOLUTIONS) -> None:
    """Make the model, unless it exists with at least as long a warm-up on the same families.

    Raises UsageError without the packages, Failed if a command fails.
    """
    folder, families = tasks.BASE, {name: dict(family.settings) for name, family in FAMILIES.items()}
    done = folder / "warm-up.json"
    made = json.loads(done.read_text()) if done.exists() else {}
    if made.get("families") == families and made["solutions"] >= solutions:
        return
    add_packages()
    shutil.rmtree(folder, ignore_errors=True)
    work = folder.with_name(f"{folder.name}-made")
    work.mkdir(parents=True, exist_ok=True)
    _run("lab.real.convert", [str(work / "released")])
    lines = [line for family in FAMILIES.values() for line in records(family, STRETCH["warm-up"], solutions)]
    random.Random(0).shuffle(lines)
    write_lines(work / "warm-up.jsonl", lines)
    options = {"model.model_name_or_path": work / "released", "data.dataset": work / "warm-up.jsonl", **WARM_UP}
    _run("lab.real.sft", option_words({**options, "ckpt.output_dir": folder}))
    done.write_text(json.dumps({"solutions": solutions, "families": families}))


def _run(module: str, words: Sequence[str]) -> None:
    """Run a module, with its output on standard error. Raises Failed."""
    status = subprocess.run([sys.executable, "-m", module, *words], stdout=2).returncode
    if status:
        raise Failed(f"{module} ended with status {status}: what it said stands above")
