"""The policies of a short run on the testbed, saved every few steps, and vLLM in this process to sample from them."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.command import TRAINING, train_command
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo import platform

SAVED = 4
"""Steps between two saved policies."""
TRAIN = {
    **TRAINING,
    "rollout.batch_size": 8,
    "rollout.micro_batch_size": 8,
    "train.micro_batch_size": 8,
    "train.num_episodes": 2,
    "actor.adam.lr": 5e-4,
    "ckpt.save_steps": SAVED,
    "ckpt.save_hf": True,
    "ckpt.disable_ds": True,
}


def trained(level: str, folder: Path, options: Mapping[str, object]) -> Path:
    """The folder of a run of 16 steps with its policies, trained if missing; 64 questions, in data/train.jsonl."""
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        train, _ = write_dataset(level, folder / "data", 64, 8, seed=0)
        places = {"ckpt.path": folder / "ckpt", "ckpt.output_dir": folder / "model", "data.prompt_dataset": train}
        with (folder / "log.txt").open("w") as log:
            command = train_command({**TRAIN, **options, **places, "actor.model_name_or_path": model_dir(level)})
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
        (folder / "done").touch()
    return folder


def policy(folder: Path, step: int) -> Path:
    """The model that a run saved after ``step`` steps."""
    return folder / "ckpt" / f"global_step{step}_hf"


def engine(model: Path, **options: Any) -> Any:
    """vLLM's ``LLM`` on the CPU, as in a run."""
    platform.choose("cpu", 0.0)
    platform.prepare()
    import torch
    from vllm import LLM

    torch.set_num_threads(1)
    asked = {"dtype": "float32", "max_model_len": 768, "enforce_eager": True, "logprobs_mode": "processed_logprobs"}
    return LLM(str(model), **asked | options)
