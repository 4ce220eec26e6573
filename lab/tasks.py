"""What a benchmark's arms are trained on: the levels of the testbed, and families of reasoning-gym for SmolLM2."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.command import TASK
from lab.real import REWARD
from lab.real.families import FAMILIES, STRETCH, records
from lab.testbed import LEVELS, model_dir, write_dataset
from lab.testbed.task import CAREFUL, demonstrate

BASE = Path(__file__).resolve().parents[1] / "runs" / "real" / "base"
"""SmolLM2-135M-Instruct after its warm-up (``lab/real/base.py``)."""
CHAT = {
    "data.input_key": "question",
    "data.label_key": "answer",
    "data.apply_chat_template": True,
    "data.max_len": 256,
    "reward.remote_url": REWARD,
    "vllm.num_engines": 1,
    "vllm.gpu_memory_utilization": 0.5,
    "train.colocate_all": True,
}
"""Options of training and evaluation on the families; one GPU is enough."""


@dataclass(frozen=True)
class Task:
    """Questions to train and to evaluate on, the initial model, and the options that go with them."""

    model: Path
    accuracy: float | None
    """Of the model at temperature 1, if measured with many samples."""
    options: Mapping[str, object]
    """Of training and of evaluation."""
    write: Callable[[Path, int, int, int], tuple[Path, Path]]
    """(folder, n_train, n_heldout, n_before) -> paths of ``train.jsonl`` and ``heldout.jsonl``; the same arguments give the
    same files. ``solutions.jsonl`` beside them is ``train.jsonl`` with solutions; the first n_before held-out questions
    are skipped."""


def task(name: str) -> Task:
    """A level of the testbed, or a family."""
    if name in LEVELS:
        accuracy = json.loads((model_dir(name) / "figures.json").read_text())["pass@1"]
        return Task(model_dir(name), accuracy, TASK, partial(_of_testbed, name))
    return Task(BASE, None, CHAT, partial(_of_family, name))


def _of_testbed(level: str, folder: Path, n_train: int, n_heldout: int, n_before: int) -> tuple[Path, Path]:
    train, heldout = write_dataset(level, folder, n_train, n_heldout, seed=0, n_before=n_before)
    lines = [json.loads(line) for line in train.read_text().splitlines()]
    for line in lines:
        line["solution"] = demonstrate(line["question"], CAREFUL, random.Random(line["question"]))
    write_lines(folder / "solutions.jsonl", lines)
    return train, heldout


def _of_family(name: str, folder: Path, n_train: int, n_heldout: int, n_before: int) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    solved = records(FAMILIES[name], STRETCH["train"], n_train)
    write_lines(folder / "solutions.jsonl", solved)
    asked = {"train": solved, "heldout": records(FAMILIES[name], STRETCH["heldout"] + n_before, n_heldout)}
    for part, lines in asked.items():
        write_lines(folder / f"{part}.jsonl", [{"question": line["question"], "answer": line["answer"]} for line in lines])
    return folder / "train.jsonl", folder / "heldout.jsonl"


def write_lines(file: Path, lines: Sequence[Mapping[str, str]]) -> None:
    """Write JSONL."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
