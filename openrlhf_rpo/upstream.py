"""The one file that knows OpenRLHF's names: its classes, its option parser, its checks, its entry point.

Names are resolved when first used (``from openrlhf_rpo.upstream import Experience`` imports openrlhf then), so that the
command line can be parsed and refused without loading torch. OpenRLHF 0.11.2 builds its parser and checks its options
below ``if __name__ == "__main__"`` in ``openrlhf/cli/train_ppo_ray.py``: both are taken from the installed file, by
its syntax tree, instead of being retyped here.
"""

import argparse
import ast
import importlib
import importlib.util
from collections.abc import Callable
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo import platform

SUPPORTED_VERSION = "0.11.2"
STAGING = "incoming"  # below --ckpt.path: where the training actors write a checkpoint before it is one

_CLASSES = {
    "Actor": "openrlhf.models",
    "ActorPPOTrainer": "openrlhf.trainer.ray.ppo_actor",
    "Experience": "openrlhf.trainer.ppo_utils.experience",
    "NaiveReplayBuffer": "openrlhf.trainer.ppo_utils.replay_buffer",
    "RemoteExperienceMaker": "openrlhf.trainer.ppo_utils.experience_maker",
    "apply_length_penalties": "openrlhf.trainer.ppo_utils.length_penalty",
    "balance_experiences": "openrlhf.trainer.ppo_utils.experience",
    "BasePPOTrainer": "openrlhf.trainer.ppo_trainer",
    "compute_eval_metrics": "openrlhf.trainer.ppo_trainer",
    "batch_vllm_engine_call": "openrlhf.trainer.ray.vllm_engine",
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


class UpstreamError(RuntimeError):
    """OpenRLHF is missing, or of a version this package was not written against."""


class UsageError(ValueError):
    """The options contradict each other or miss something; the message is for the user."""


def __getattr__(name: str) -> Any:
    """Resolve an upstream name lazily; the plain class underneath for Ray actors, which cannot be subclassed."""
    if name in _CLASSES:
        platform.prepare()
        return getattr(importlib.import_module(_CLASSES[name]), name)
    if name in _RAY_CLASSES:
        platform.prepare()
        return unwrap(getattr(importlib.import_module(_RAY_CLASSES[name]), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def unwrap(ray_actor_class: Any) -> type:
    """The Python class under a ``@ray.remote`` class."""
    return ray_actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def check_version() -> None:
    """Raises UpstreamError unless the installed openrlhf is the one whose seams are used here."""
    try:
        installed = version("openrlhf")
    except PackageNotFoundError:
        raise UpstreamError(f"openrlhf is not installed: pip install openrlhf=={SUPPORTED_VERSION}") from None
    if installed != SUPPORTED_VERSION:
        raise UpstreamError(
            f"openrlhf {installed} is installed, but patch releases move options and return values: "
            f"pip install openrlhf=={SUPPORTED_VERSION}"
        )


# ── The command line ──


def build_parser() -> argparse.ArgumentParser:
    """OpenRLHF's own parser with every one of its options and defaults, unparsed."""
    before, _ = _main_block()
    scope = _run(before, {})
    return scope["parser"]


def nest(flat: argparse.Namespace) -> SimpleNamespace:
    """``--algo.kl.init_coef`` as ``args.algo.kl.init_coef``."""
    return _load_file("utils/config.py").hierarchize(flat)


def finish_args(flat: argparse.Namespace) -> SimpleNamespace:
    """Nest the parsed options (``args.algo.kl``...) and run OpenRLHF's own checks, which also fill in defaults.

    Raises UsageError with upstream's message where upstream would have stopped with an assertion or an attribute error.
    """
    _, after = _main_block()
    args = nest(flat)
    try:
        return _run(after, {"args": args})["args"]
    except AssertionError as error:
        raise UsageError(str(error)) from error
    except (AttributeError, TypeError) as error:
        # e.g. `--vllm.num_engines` left out with `--ds.packing_samples`: None > 0; no reward source with gae: None.split
        raise UsageError(f"OpenRLHF cannot use these options together ({error})") from error


def _main_block() -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Statements of the ``__main__`` block of train_ppo_ray.py: those that build the parser, and those that check.

    Left out: ``args = parser.parse_args()``, the import and call of ``hierarchize``, and the final ``train(args)``.
    """
    tree = ast.parse(_source_file("cli/train_ppo_ray.py").read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and "__main__" in ast.unparse(n.test)).body
    text = [ast.unparse(statement) for statement in block]
    parse = text.index("args = parser.parse_args()")
    nest = text.index("args = hierarchize(args)")
    last = text.index("train(args)")
    return block[:parse], block[nest + 1 : last]


def _run(statements: list[ast.stmt], scope: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime

    scope |= {"argparse": argparse, "datetime": datetime}
    code = compile(ast.Module(body=statements, type_ignores=[]), str(_source_file("cli/train_ppo_ray.py")), "exec")
    exec(code, scope)  # upstream's own installed code, nothing of ours or of the user's
    return scope


def _source_file(relative: str) -> Path:
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise UpstreamError(f"openrlhf is not installed: pip install openrlhf=={SUPPORTED_VERSION}")
    return Path(next(iter(spec.submodule_search_locations))) / relative


def _load_file(relative: str) -> Any:
    """Load one dependency-free upstream file without its package, whose import pulls in torch."""
    spec = importlib.util.spec_from_file_location(f"_openrlhf_{Path(relative).stem}", _source_file(relative))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ── The entry point ──


def train(args: SimpleNamespace) -> None:
    """OpenRLHF's ``train``: engines, actors, trainer, fit, save. Ray must be initialized."""
    platform.prepare()
    importlib.import_module("openrlhf.cli.train_ppo_ray").train(args)


def create_engines(args: SimpleNamespace, engine: Any, logprobs_mode: str) -> list[Any]:
    """The vLLM engines of a run by OpenRLHF's own placement, without its trainer. Ray must be initialized."""
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
            logprobs_mode=logprobs_mode,
        )


@contextmanager
def replaced(engine: Any, policy_actor: Any, critic_actor: Any, reference_actor: Any, trainer: Any, logprobs_mode: str):
    """While inside, ``train`` builds our engine, model actors and trainer instead of upstream's.

    Upstream names the classes as module globals, so the topology (placement groups, colocation, ranks) stays its own.
    """
    platform.prepare()
    cli = importlib.import_module("openrlhf.cli.train_ppo_ray")
    vllm_engine = importlib.import_module("openrlhf.trainer.ray.vllm_engine")
    ppo_trainer = importlib.import_module("openrlhf.trainer.ppo_trainer")
    create: Callable[..., Any] = cli.create_vllm_engines

    def create_with_log_probs(*args: Any, **kwargs: Any) -> Any:
        *head, mode = args  # the last positional argument is logprobs_mode, None unless a correction is on
        return create(*head, mode or logprobs_mode, **kwargs)

    replacements = [
        (cli, "PolicyModelActor", policy_actor),
        (cli, "CriticModelActor", critic_actor),
        (cli, "ReferenceModelActor", reference_actor),
        (cli, "create_vllm_engines", create_with_log_probs),
        (vllm_engine, "RolloutRayActor", engine),
        (ppo_trainer, "PPOTrainer", trainer),
    ]
    with _set(replacements):
        yield


@contextmanager
def actor_trainer(trainer: type):
    """While inside, upstream's policy actor builds this trainer instead of its ``ActorPPOTrainer``."""
    platform.prepare()
    with _set([(importlib.import_module("openrlhf.trainer.ray.ppo_actor"), "ActorPPOTrainer", trainer)]):
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
