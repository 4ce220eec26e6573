"""A command that works, and changes to it."""

import os
from collections.abc import Callable

import pytest

from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.rollout.questions import load_questions
from openrlhf_rpo.run.files import cache_url, fingerprints
from openrlhf_rpo.types import CacheDecision, StepRecord, Visit

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
    from openrlhf_rpo.launch import options

    return lambda **changes: options.parse(build_argv(**changes))


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """These tests see no Ray cluster, and leave the environment as it was."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def run(parse, tmp_path, monkeypatch):
    """Parse and check a command on the testbed: 16 questions, batches of 8."""
    from openrlhf_rpo.launch.preflight import check_run  # imports OpenRLHF

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    train, held_out = write_dataset("main", tmp_path / "data", 16, 4, seed=0)
    usual = {
        "actor__model_name_or_path": model_dir("main"),
        "data__prompt_dataset": train,
        "eval__dataset": held_out,
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__output_dir": tmp_path / "model",
    }

    def check(**changes):
        args = parse(**usual | changes)
        check_run(args, RPOConfig.from_namespace(args.rpo))
        return args

    return check


@pytest.fixture
def commit_steps() -> Callable[..., None]:
    """``commit_steps(args, n)``: the cache of a run that has made n steps."""
    from openrlhf_rpo.upstream import get_tokenizer  # imports OpenRLHF

    def commit(args, n: int) -> None:
        tokenizer = get_tokenizer(args.actor.model_name_or_path, None)
        loaded, _ = load_questions(args, tokenizer)
        with PathCache.open(cache_url(args), fingerprints(args, loaded, tokenizer)) as cache:
            cache.mark_initialised()
            for step in range(1, n + 1):
                visit = Visit(loaded[0].question_id, step, 0, 0, 3, 4, 1, "best")
                cache.commit_step(StepRecord(step, 0, 8 * step, {}), [CacheDecision(None, visit)])

    return commit
