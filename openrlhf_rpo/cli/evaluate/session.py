"""Engines, questions, prompts and rewards of the training command, without its trainer.

The options are the training command's own, so that a model is asked what it is asked in training: the same template, the
same rewards, the same seeds. What concerns only a trainer is accepted and plays no part.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from openrlhf_rpo import upstream
from openrlhf_rpo.upstream import UsageError

if TYPE_CHECKING:
    from openrlhf_rpo.config import RPOConfig
    from openrlhf_rpo.rollout.rollout import Rollout
    from openrlhf_rpo.types import Question

# What the training command insists on although nothing is trained here; a word that is given by hand comes later and wins.
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
MAX_LEN = 32_768  # what evaluations of reasoning models usually allow
_REWARDS = ("--rpo.reward.functions", "--reward.remote_url")
_NOT_HERE = ("--eval.dataset", "--data.prompt_dataset", "--actor.model_name_or_path", "--reward.model_name_or_path")


@dataclass(frozen=True)
class Subject:
    """What will be asked, read and checked before anything is started: the questions of the data, duplicates merged."""

    args: SimpleNamespace
    device: str
    config: "RPOConfig"
    tokenizer: Any
    questions: "list[Question]"


@dataclass(frozen=True)
class Session:
    """A model behind its engines. ``rollout`` samples and scores, and reads no cache; the engines took ``start_seconds``."""

    model: str
    device: str
    tokenizer: Any
    questions: "list[Question]"
    rollout: "Rollout"
    start_seconds: float


def training_args(model: str, data: str, words: Sequence[str], split: str = "train") -> SimpleNamespace:
    """The checked options of a training command for this model and data, with no device for a trainer. Raises UsageError.

    ``words`` are further training options: template, rewards, engines, ``--data.max_len``, ``--train.seed``, ...
    """
    from openrlhf_rpo.cli.options import given_options, parse

    given = given_options(words)
    if both := [word for word in _NOT_HERE if word in given]:
        raise UsageError(
            f"{both[0]}: leave it out, this command has its own words for model and data, and takes no reward model"
        )
    base = [str(word) for pair in _BASE.items() for word in pair]
    if not given & set(_REWARDS):
        base += ["--rpo.reward.functions", "math"]
    args = parse([*base, "--actor.model_name_or_path", model, "--eval.dataset", data, "--eval.split", split, *words])
    if "--data.max_len" not in given:
        args.data.max_len = None  # as the model allows, which ``prepare`` reads
    for group in ("actor", "ref", "critic", "reward"):
        getattr(args, group).num_gpus_per_node = 0
    args.train.colocate_all = args.train.colocate_critic_reward = args.vllm.enable_sleep = False
    return args


def refuse_checkpoint(model: str) -> None:
    """Raises UsageError for a folder that is no model: missing, or a training checkpoint of DeepSpeed."""
    folder = Path(model)
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or model.count("/") > 1:
            raise UsageError(f"there is no model folder {model}")
        return
    states = [file for depth in ("", "*/", "_actor/*/") for file in folder.glob(f"{depth}*_model_states.pt")]
    if not (folder / "config.json").exists() and states:
        raise UsageError(
            f"{model} is a checkpoint to resume from ({states[0].name}: DeepSpeed's partitions), not a model. Evaluate the "
            "model that training saves at its end in --ckpt.output_dir, or resume the run with --ckpt.save_hf, which saves "
            "one beside each checkpoint"
        )
    if not (folder / "config.json").exists():
        raise UsageError(f"{model} is not a model folder: it has no config.json")


def weights_of(model: str) -> str:
    """Changes when the files of a local model change: a run goes on only with the weights that it was begun with."""
    files = sorted(f for f in Path(model).glob("*") if f.suffix in (".safetensors", ".bin")) if Path(model).is_dir() else []
    marks = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(json.dumps(marks or model).encode()).hexdigest()[:16]


def prepare(args: SimpleNamespace) -> Subject:
    """Read and check model folder, tokenizer, questions and rewards. Raises UsageError. Speaks on standard error."""
    refuse_checkpoint(args.actor.model_name_or_path)
    with contextlib.redirect_stdout(sys.stderr):
        from openrlhf_rpo.cli.cluster import choose_device

        device = choose_device(args)
        # These import OpenRLHF: only now is the device known.
        from openrlhf_rpo.cli.preflight import check_questions, check_reward, load_tokenizer
        from openrlhf_rpo.config import RPOConfig
        from openrlhf_rpo.rollout.questions import load_eval_questions

        config, tokenizer = RPOConfig.from_namespace(args.rpo), load_tokenizer(args)
        if args.data.max_len is None:
            args.data.max_len = _longest(args)
        questions = list({q.question_id: q for q in load_eval_questions(args, tokenizer)}.values())
        if warning := check_questions(args, config, questions, tokenizer):
            print(f"Warning: {warning}")
        check_reward(args, config)
    return Subject(args, device, config, tokenizer, questions)


def _longest(args: SimpleNamespace) -> int:
    """Tokens of prompt and answer that the model was made for, but at most ``MAX_LEN``."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(args.actor.model_name_or_path, trust_remote_code=args.rpo.trust_remote_code)
    return min(MAX_LEN, config.to_dict().get("max_position_embeddings") or MAX_LEN)


@contextlib.contextmanager
def session(subject: Subject) -> Iterator[Session]:
    """Ray and the engines; both end with the session. What they print goes to standard error."""
    args, config, tokenizer = subject.args, subject.config, subject.tokenizer
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about settings that nobody chose here
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as resources:
        import ray

        from openrlhf_rpo.cli.cluster import connect, disconnect
        from openrlhf_rpo.rollout.engine import RPOEngine
        from openrlhf_rpo.rollout.generation import Generator
        from openrlhf_rpo.rollout.rollout import Rollout
        from openrlhf_rpo.rollout.scoring import make_scorer

        scorer = make_scorer(config.reward, args.reward.remote_url)
        if scorer is None:
            raise UsageError("no scores: --rpo.reward.functions, or --reward.remote_url (a Python file or a server)")
        resources.callback(scorer.close)
        resources.callback(disconnect)
        connect(args, subject.device)
        print(f"Starting {args.vllm.num_engines} vLLM engine(s) on {subject.device}", flush=True)
        started = time.perf_counter()
        engines = upstream.create_engines(args, RPOEngine, "processed_logprobs")
        ray.get([engine.get_num_unfinished_requests.remote() for engine in engines])  # one that cannot start raises here
        seconds = time.perf_counter() - started
        rollout = Rollout(Generator(engines, False), scorer, None, tokenizer, config, args)
        yield Session(args.actor.model_name_or_path, subject.device, tokenizer, subject.questions, rollout, seconds)
