"""Engines, questions, prompts and rewards of the training command, without its trainer.

The options are those of the training command, so that evaluation uses the same template, rewards and seeds. Options that
only a trainer needs are accepted and ignored.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_rpo import upstream
from openrlhf_rpo.errors import Failed, UsageError

if TYPE_CHECKING:
    from openrlhf_rpo.config import RPOConfig
    from openrlhf_rpo.rollout.rollout import Rollout
    from openrlhf_rpo.types import Question

# Options that the training command requires although nothing is trained here. Options on the command line override them.
_BASE = {
    "--data.input_key": "question",
    "--data.label_key": "answer",
    "--data.max_samples": 100_000_000,
    "--algo.advantage.estimator": "group_norm",
    "--algo.kl.init_coef": 0,
    "--rollout.batch_size": 16,
    "--rollout.n_samples_per_prompt": 8,
    "--train.batch_size": 128,
    "--train.micro_batch_size": 1,
    "--vllm.num_engines": 1,
}
MAX_LEN = 32_768  # the usual limit in evaluations of reasoning models
_REWARDS = ("--rpo.reward.functions", "--reward.remote_url")
_NOT_HERE = ("--eval.dataset", "--data.prompt_dataset", "--actor.model_name_or_path", "--reward.model_name_or_path")


@dataclass(frozen=True)
class Subject:
    """The model and questions of an evaluation, checked before anything starts. Duplicate questions are merged."""

    args: SimpleNamespace
    device: str
    config: "RPOConfig"
    tokenizer: Any
    questions: "list[Question]"


@dataclass(frozen=True)
class Session:
    """Running engines. ``rollout`` samples and scores without a cache; the engines took ``start_seconds`` to start."""

    model: str
    device: str
    tokenizer: Any
    questions: "list[Question]"
    rollout: "Rollout"
    start_seconds: float


def training_args(model: str, data: str, words: Sequence[str], split: str = "train") -> SimpleNamespace:
    """The checked options of a training command without devices for a trainer. Raises UsageError.

    ``words`` are more training options: template, rewards, engines, ``--data.max_len``, ``--train.seed``, ...
    """
    from openrlhf_rpo.launch.options import given_options, parse

    given = given_options(words)
    if both := [word for word in _NOT_HERE if word in given]:
        raise UsageError(
            f"{both[0]}: leave it out; this command has its own arguments for model and data, and takes no reward model"
        )
    base = [str(word) for pair in _BASE.items() for word in pair]
    if not given & set(_REWARDS):
        base += ["--rpo.reward.functions", "math"]
    with contextlib.redirect_stdout(sys.stderr):  # OpenRLHF prints recommendations
        args = parse([*base, "--actor.model_name_or_path", model, "--eval.dataset", data, "--eval.split", split, *words])
    if "--rpo.reward.max_failure_share" not in given:
        args.rpo.reward.max_failure_share = 0.0  # a failed reward's stand-in would be stored for good
    if "--data.max_len" not in given:
        args.data.max_len = None  # ``prepare`` reads it from the model
    for group in ("actor", "ref", "critic", "reward"):
        getattr(args, group).num_gpus_per_node = 0
    args.train.colocate_all = args.train.colocate_critic_reward = args.vllm.enable_sleep = False
    return args


def refuse_checkpoint(model: str) -> None:
    """Raise UsageError for a missing folder, a DeepSpeed checkpoint, or another folder without a model."""
    folder = Path(model)
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise UsageError(f"there is no model folder {model}")
        return
    if (folder / "config.json").exists():
        return
    states = [file for depth in ("", "*/", "_actor/*/") for file in folder.glob(f"{depth}*_model_states.pt")]
    if states:
        raise UsageError(
            f"{model} is a DeepSpeed checkpoint ({states[0].name}), not a model. Evaluate the model that training saves in "
            "--ckpt.output_dir at its end, or resume the run with --ckpt.save_hf, which saves one beside each checkpoint"
        )
    raise UsageError(f"{model} is not a model folder: it has no config.json")


def prepare(args: SimpleNamespace) -> Subject:
    """Read and check model, tokenizer, questions and rewards. Raises UsageError. Prints to standard error."""
    refuse_checkpoint(args.actor.model_name_or_path)
    with contextlib.redirect_stdout(sys.stderr):
        from openrlhf_rpo.launch.cluster import choose_device

        device = choose_device(args)
        # These import OpenRLHF, which needs to know the device.
        from openrlhf_rpo.config import RPOConfig
        from openrlhf_rpo.launch.preflight import check_questions, load_tokenizer
        from openrlhf_rpo.rollout.questions import load_eval_questions
        from openrlhf_rpo.rollout.scoring import check_reward_source

        config, tokenizer = RPOConfig.from_namespace(args.rpo), load_tokenizer(args)
        if args.data.max_len is None:
            args.data.max_len = _longest(args)
        loaded, repeated = load_eval_questions(args, tokenizer)
        questions = list({q.question_id: q for q in loaded}.values())
        for warning in check_questions(args, config, questions, repeated + len(loaded) - len(questions)):
            print(f"Warning: {warning}")
        check_reward_source(config.reward, args.reward.remote_url)
    return Subject(args, device, config, tokenizer, questions)


def _longest(args: SimpleNamespace) -> int:
    """The model's context length in tokens, at most ``MAX_LEN``."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(args.actor.model_name_or_path, trust_remote_code=args.rpo.trust_remote_code)
    return min(MAX_LEN, config.to_dict().get("max_position_embeddings") or MAX_LEN)


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Turn errors of Ray, the engines or the rewards into Failed with their cause; an interrupt says how to continue."""
    again = "The same command continues where this one stopped"
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(again) from None
    except Exception as error:
        from ray.exceptions import RayError

        from openrlhf_rpo.launch.failures import cause_of

        if not isinstance(error, RayError | Failed):
            raise
        raise Failed(f"{cause_of(error)}\n  {again}") from error


@contextlib.contextmanager
def session(subject: Subject) -> Iterator[Session]:
    """Start Ray and the engines, and stop both at the end. Their output goes to standard error."""
    args, config, tokenizer = subject.args, subject.config, subject.tokenizer
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about settings the user did not choose
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as resources:
        import ray

        from openrlhf_rpo.launch.cluster import connect
        from openrlhf_rpo.rollout.engine import engine_for
        from openrlhf_rpo.rollout.generation import Generator
        from openrlhf_rpo.rollout.rollout import Rollout
        from openrlhf_rpo.rollout.scoring import make_scorer

        scorer = make_scorer(config.reward, args.reward.remote_url)
        resources.callback(scorer.close)
        resources.callback(ray.shutdown)
        connect(args, subject.device)
        print(f"Starting {args.vllm.num_engines} vLLM engine(s) on {subject.device}", flush=True)
        started = time.perf_counter()
        engine = engine_for(args.rpo, args.ds.param_dtype, trains=False)
        engines = upstream.create_engines(args, engine)
        ray.get([engine.get_num_unfinished_requests.remote() for engine in engines])  # raises if an engine cannot start
        seconds = time.perf_counter() - started
        rollout = Rollout(Generator(engines, False), scorer, None, tokenizer, config, args)
        yield Session(args.actor.model_name_or_path, subject.device, tokenizer, subject.questions, rollout, seconds)
