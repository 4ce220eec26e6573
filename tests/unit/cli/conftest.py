"""A command that works, and changes to it."""

import os
from collections.abc import Callable

import pytest

GOOD = {
    "actor.model_name_or_path": "model",
    "actor.num_gpus_per_node": 1,
    "data.prompt_dataset": "train.jsonl",
    "data.input_key": "question",
    "data.label_key": "answer",
    "data.max_len": 768,
    "rpo.reward.functions": "math",
    "rpo.preset": "grpo",
    "algo.kl.init_coef": 0,
    "rollout.batch_size": 8,
    "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": 8,
    "train.batch_size": 32,
    "train.micro_batch_size": 8,
    "vllm.num_engines": 1,
}


def build_argv(**changes: object) -> list[str]:
    """``rollout__batch_size=4`` is --rollout.batch_size 4; None leaves an option out, True is a flag."""
    options = GOOD | {name.replace("__", "."): value for name, value in changes.items()}
    words = []
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    return words


@pytest.fixture
def argv() -> Callable[..., list[str]]:
    return build_argv


@pytest.fixture
def parse() -> Callable[..., object]:
    from openrlhf_rpo.cli import options

    return lambda **changes: options.parse(build_argv(**changes))


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """These tests see no Ray cluster, and leave the environment as it was."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
