"""The only file that names parts of OpenRLHF: its classes, option parser, checks and entry point.

Names are resolved when first used (``from openrlhf_rpo.upstream import Experience`` imports openrlhf then), so the command
line can be parsed and refused without loading torch. OpenRLHF 0.11.2 builds its parser and checks its options below ``if
__name__ == "__main__"`` in ``openrlhf/cli/train_ppo_ray.py``; that code is taken from the syntax tree of the installed file,
as is that of ``train_sft.py``.
"""

import argparse
import ast
import functools
import importlib
import importlib.util
import runpy
from collections.abc import Callable
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo import platform
from openrlhf_rpo.errors import UpstreamError, UsageError
from openrlhf_rpo.platform.ray_class import unwrap

SUPPORTED_VERSION = "0.11.2"
_LOG_PROBS = "processed_logprobs"  # vLLM's logprobs_mode: those of the distribution that is drawn from
STAGING = "incoming"  # below --ckpt.path: where the training actors write a checkpoint before it is published

_CLASSES = {
    "Actor": "openrlhf.models",
    "ActorPPOTrainer": "openrlhf.trainer.ray.ppo_actor",
    "Experience": "openrlhf.trainer.ppo_utils.experience",
    "NaiveReplayBuffer": "openrlhf.trainer.ppo_utils.replay_buffer",
    "RemoteExperienceMaker": "openrlhf.trainer.ppo_utils.experience_maker",
    "apply_length_penalties": "openrlhf.trainer.ppo_utils.length_penalty",
    "balance_experiences": "openrlhf.trainer.ppo_utils.experience",
    "make_experience_batch": "openrlhf.trainer.ppo_utils.experience",
    "remove_padding_in_sequences": "openrlhf.trainer.ppo_utils.experience",
    "split_experience_batch": "openrlhf.trainer.ppo_utils.experience",
    "BasePPOTrainer": "openrlhf.trainer.ppo_trainer",
    "CriticPPOTrainer": "openrlhf.trainer.ray.ppo_critic",
    "compute_eval_metrics": "openrlhf.trainer.ppo_trainer",
    "PromptDataset": "openrlhf.datasets",
    "blending_datasets": "openrlhf.datasets.utils",
    "get_tokenizer": "openrlhf.utils.utils",
    "get_minimum_num_micro_batch_size": "openrlhf.utils.seqlen_balancing",
    "get_seqlen_balanced_partitions": "openrlhf.utils.seqlen_balancing",
}
_RAY_CLASSES = {
    "PolicyModelActor": "openrlhf.trainer.ray.ppo_actor",
    "CriticModelActor": "openrlhf.trainer.ray.ppo_critic",
    "ReferenceModelActor": "openrlhf.trainer.ray.launcher",
    "RolloutRayActor": "openrlhf.trainer.ray.vllm_engine",
}


def __getattr__(name: str) -> Any:
    """Resolve an upstream name lazily; for Ray actors, the Python class underneath."""
    if name in _CLASSES:
        platform.prepare()
        return getattr(importlib.import_module(_CLASSES[name]), name)
    if name in _RAY_CLASSES:
        platform.prepare()
        return unwrap(getattr(importlib.import_module(_RAY_CLASSES[name]), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_version() -> None:
    """Raises UpstreamError unless the supported version of openrlhf is installed."""
    try:
        installed = version("openrlhf")
    except PackageNotFoundError:
        raise UpstreamError(f"openrlhf is not installed: pip install openrlhf=={SUPPORTED_VERSION}") from None
    if installed != SUPPORTED_VERSION:
        raise UpstreamError(
            f"openrlhf {installed} is installed, but patch releases move options and return values: "
            f"pip install openrlhf=={SUPPORTED_VERSION}"
        )


def check_packages(args: SimpleNamespace) -> None:
    """Raises UsageError for an option whose package is missing: openrlhf imports it after the engines have started."""
    for used, option, module in (
        (args.ds.use_liger_kernel, "--ds.use_liger_kernel", "liger_kernel"),
        (args.ds.ring_attn_size > 1, "--ds.ring_attn_size above 1", "ring_flash_attn"),
        (args.ds.ring_attn_size > 1, "--ds.ring_attn_size above 1", "flash_attn"),
    ):
        package = module.replace("_", "-")
        if used and importlib.util.find_spec(module) is None:
            raise UsageError(f"{option} needs the package {package}, which is not installed: pip install {package}")


# ── The command line ──


def build_parser(entry: str = "train_ppo_ray") -> argparse.ArgumentParser:
    """The parser of one of OpenRLHF's entry points (``openrlhf/cli``), with all its options and defaults."""
    before, _ = _main_block(entry)
    return _run(before, {})["parser"]


def nest(flat: argparse.Namespace) -> SimpleNamespace:
    """``--algo.kl.init_coef`` as ``args.algo.kl.init_coef``."""
    return runpy.run_path(str(_source_file("utils/config.py")))["hierarchize"](flat)  # importing it would load torch


def n_processes(model: SimpleNamespace) -> int:
    """Processes of a model, one per device; ``model``: its options, e.g. ``args.actor``."""
    return model.num_nodes * model.num_gpus_per_node


def n_replicas(args: SimpleNamespace, name: str) -> int:
    """Processes of a model that get rows of their own; those of a ring or a tensor parallel group get the same."""
    return n_processes(getattr(args, name)) // args.ds.ring_attn_size // args.ds.tensor_parallel_size


def finish_args(flat: argparse.Namespace) -> SimpleNamespace:
    """Nest the parsed options (``args.algo.kl``...) and run OpenRLHF's own checks, which also fill in defaults.

    Raises UsageError with upstream's message where upstream would fail with an assertion or attribute error.
    """
    _, after = _main_block()
    args = nest(flat)
    if args.ds.lora.target_modules == ["all-linear"]:  # given by hand it is a list, as which peft does not know it
        args.ds.lora.target_modules = "all-linear"
    try:
        return _run(after, {"args": args})["args"]
    except AssertionError as error:
        raise UsageError(str(error)) from error
    except (AttributeError, TypeError) as error:
        # e.g. `--vllm.num_engines` left out with `--ds.packing_samples`: None > 0; no reward source with gae: None.split
        raise UsageError(f"OpenRLHF cannot use these options together ({error})") from error


@functools.cache
def _main_block(entry: str = "train_ppo_ray") -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements of an entry point's ``__main__`` block that build the parser, and those that check the options.

    The parsing itself, the call of ``hierarchize`` and the final ``train(args)`` are left out.
    """
    tree = ast.parse(_source_file(f"cli/{entry}.py").read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and "__main__" in ast.unparse(n.test)).body
    text = [ast.unparse(statement) for statement in block]
    parse = text.index("args = parser.parse_args()")
    nest = text.index("args = hierarchize(args)")
    last = text.index("train(args)")
    return block[:parse], block[nest + 1 : last]


def _run(statements: list[ast.stmt], scope: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    scope |= {"argparse": argparse, "datetime": datetime}
    code = compile(ast.Module(body=statements, type_ignores=[]), str(_source_file("cli")), "exec")
    exec(code, scope)  # only upstream's installed code
    return scope


def _source_file(relative: str) -> Path:
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise UpstreamError(f"openrlhf is not installed: pip install openrlhf=={SUPPORTED_VERSION}")
    return Path(next(iter(spec.submodule_search_locations))) / relative


# ── The entry point ──


def train(args: SimpleNamespace) -> None:
    """Run OpenRLHF's ``train``. Ray must be initialized."""
    platform.prepare()
    importlib.import_module("openrlhf.cli.train_ppo_ray").train(args)


def fine_tune(args: SimpleNamespace) -> None:
    """Run OpenRLHF's supervised fine-tuning (``cli/train_sft.py``) in this process, a rank of its training."""
    platform.prepare()
    importlib.import_module("openrlhf.cli.train_sft").train(args)


def create_engines(args: SimpleNamespace, engine: Any) -> list[Any]:
    """The run's vLLM engines, placed as OpenRLHF does, without a trainer. Ray must be initialized."""
    platform.prepare()
    module = importlib.import_module("openrlhf.trainer.ray.vllm_engine")
    with _set([(module, "RolloutRayActor", engine)]):
        return module.create_vllm_engines(
            args.vllm.num_engines,
            args.vllm.tensor_parallel_size,
            args.actor.model_name_or_path,
            args.train.seed,
            args.train.full_determinism_enable,
            True,
            args.vllm.enforce_eager,
            args.data.max_len,
            gpu_memory_utilization=args.vllm.gpu_memory_utilization,
            logprobs_mode=_LOG_PROBS,
        )


@contextmanager
def replaced(engine: Any, policy_actor: Any, critic_actor: Any, reference_actor: Any, trainer: Any):
    """While inside, ``train`` builds our engine, model actors and trainer instead of upstream's.

    Only module globals are replaced; placement groups, colocation and ranks stay upstream's.
    """
    platform.prepare()
    cli = importlib.import_module("openrlhf.cli.train_ppo_ray")
    vllm_engine = importlib.import_module("openrlhf.trainer.ray.vllm_engine")
    ppo_trainer = importlib.import_module("openrlhf.trainer.ppo_trainer")
    ppo_trainer_async = importlib.import_module("openrlhf.trainer.ppo_trainer_async")
    create: Callable[..., Any] = cli.create_vllm_engines

    def create_with_log_probs(*args: Any, **kwargs: Any) -> Any:
        *head, _ = args  # the last positional argument is logprobs_mode, None unless an off-policy correction is on
        return create(*head, _LOG_PROBS, **kwargs)

    replacements = [
        (cli, "PolicyModelActor", policy_actor),
        (cli, "CriticModelActor", critic_actor),
        (cli, "ReferenceModelActor", reference_actor),
        (cli, "create_vllm_engines", create_with_log_probs),
        (vllm_engine, "RolloutRayActor", engine),
        (ppo_trainer, "PPOTrainer", trainer),
        (ppo_trainer_async, "PPOTrainerAsync", trainer),
    ]
    with _set(replacements):
        yield


@contextmanager
def actor_trainer(trainer: type):
    """While inside, upstream's policy actor builds ``trainer`` instead of its ``ActorPPOTrainer``."""
    platform.prepare()
    with _set([(importlib.import_module("openrlhf.trainer.ray.ppo_actor"), "ActorPPOTrainer", trainer)]):
        yield


@contextmanager
def critic_trainer(trainer: type):
    """While inside, upstream's critic actor builds ``trainer`` instead of its ``CriticPPOTrainer``."""
    platform.prepare()
    with _set([(importlib.import_module("openrlhf.trainer.ray.ppo_critic"), "CriticPPOTrainer", trainer)]):
        yield


@contextmanager
def length_penalties(penalize: Callable[[list[Any], SimpleNamespace], None]):
    """While inside, upstream's experience maker calls ``penalize`` instead of its own length penalties."""
    module = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")
    with _set([(module, "apply_length_penalties", penalize)]):
        yield


@contextmanager
def _set(replacements: list[tuple[Any, str, Any]]):
    originals = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    for module, name, new in replacements:
        setattr(module, name, new)
    try:
        yield
    finally:
        for module, name, old in originals:
            setattr(module, name, old)
