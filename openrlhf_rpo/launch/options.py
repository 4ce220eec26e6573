"""The command line: OpenRLHF's options and ours, method and presets applied, and every check of the options alone."""

import argparse
import difflib
import math
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo import upstream
from openrlhf_rpo.algo.methods import METHODS, Method, method_class, methods_with, option_names
from openrlhf_rpo.algo.presets import expand, preset
from openrlhf_rpo.config import RPOConfig, add_options
from openrlhf_rpo.credentials import refuse_credentials
from openrlhf_rpo.errors import UsageError, need
from openrlhf_rpo.launch import asynchronous, processes
from openrlhf_rpo.launch.early import check_words, refuse
from openrlhf_rpo.launch.former import refuse_former
from openrlhf_rpo.option import options_of
from openrlhf_rpo.training.passes import cannot_share, shares_prefixes

_UNSET = object()
DRY_RUN = "--dry-run"
_WRITTEN = ("ckpt.path", "ckpt.output_dir", "rpo.cache.url", "logger.tensorboard_dir")
_READ = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "rpo.init.source", "train.agent_func_path"),
)
_SQLITE = "sqlite:///"
_RAYS_COPIES = "/runtime_resources/working_dir_files/"
_LONGEST_WORD = 20  # W&B's keys have 40 characters or more
_REWARDS = ("rpo.reward.functions", "reward.remote_url", "reward.model_name_or_path")
_CHOICES = {
    "lr_scheduler": (  # transformers' schedulers that need only what OpenRLHF passes
        *("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt"),
        *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
    ),
    "sync_backend": ("nccl", "gloo"),
}
"""Values that OpenRLHF does not check, by the last part of the option's name."""
SHIPPED_REWARD = "rpo"  # the value of --reward.remote_url with --rpo.reward.functions


def build_parser(method: str | None = None) -> argparse.ArgumentParser:
    """OpenRLHF's parser with the ``--rpo.*`` options, including those of ``method``. Raises MethodError."""
    parser = upstream.build_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.prog = "python -m openrlhf_rpo.cli.train_rpo_ray"
    parser.description = (
        "Train a reasoning model with RPO on OpenRLHF: takes every OpenRLHF option, and --rpo.*. With --dry-run, only check "
        "the command against this machine, the data and the cluster (the same as openrlhf-rpo doctor)."
    )
    level = next(action for action in parser._actions if action.dest == "algo.advantage.is_correction_level")
    level.choices, level.default = ["auto", *level.choices], "auto"
    level.help += " auto: token where weights are not float32, as on GPUs, because engine and trainer round; off with gspo."
    for action in parser._actions:
        action.choices = _CHOICES.get(action.dest.rpartition(".")[2], action.choices)
    dtype = next(action for action in parser._actions if action.dest == "ds.param_dtype")
    dtype.choices, dtype.default = ["auto", *dtype.choices], "auto"
    dtype.help += "; auto: bf16 on GPUs, and float32 on a CPU, where bf16 shows how a GPU rounds and is slow on most"
    add_options(parser, method)
    return parser


def parse(argv: Sequence[str]) -> SimpleNamespace:
    """Hierarchical options (``args.algo.kl.init_coef``), with method and presets applied, checked. Raises UserError."""
    flat, given = _parse_given(argv)
    kind = method_class(getattr(flat, "rpo.method"))
    _keep_options_of(kind, flat, given)
    _apply_presets(kind, flat, given)
    asynchronous.correct(flat, given)
    rpo = RPOConfig.from_namespace(upstream.nest(flat).rpo)
    _use_shipped_rewards(flat, rpo)
    check_words(flat, given)
    _make_files_absolute(flat)
    _keep_out_wandb_key(flat)
    args = upstream.finish_args(flat)
    check_options(args, rpo)
    return args


def given_options(words: Sequence[str]) -> set[str]:
    """The full ``--name`` of every option among these words. Raises UsageError for unknown ones."""
    return {f"--{name}" for name in _parse_given(words)[1]}


def _parse_given(argv: Sequence[str]) -> tuple[argparse.Namespace, set[str]]:
    """All options with their defaults, and the names of those given by hand."""
    refuse_credentials(argv)
    refuse_former(list(argv))
    parser = build_parser(_method_named(argv))
    marked = argparse.Namespace(**{a.dest: _UNSET for a in parser._actions if a.dest != "help"})
    known, unknown = parser.parse_known_args(list(argv), marked)
    if unknown:
        raise UsageError(_unknown_options(parser, unknown))
    given = {name for name, value in vars(known).items() if value is not _UNSET}
    for name in vars(known).keys() - given:
        setattr(known, name, parser.get_default(name))
    return known, given


def _method_named(argv: Sequence[str]) -> str | None:
    """The value of ``--rpo.method``, needed first because its file may add options."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--rpo.method", dest="method", nargs="?")
    return finder.parse_known_args(list(argv))[0].method


def _unknown_options(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    known = [option for action in parser._actions for option in action.option_strings]
    lines = []
    for word in (w.split("=")[0] for w in unknown if w.startswith("-")):
        near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
        lines.append(f"unknown option {word}" + (f": did you mean {near[0]}?" if near else ""))
    return "\n".join(lines) or f"unexpected argument {unknown[0]!r}: it belongs to no option"


def _keep_options_of(kind: type[Method], flat: argparse.Namespace, given: set[str]) -> None:
    """Remove the options of other methods, and set the method's own defaults.

    Raises UsageError for an option of another method, unless --rpo.enable is false, when no method reads any.
    """
    fields = options_of(kind)
    own = {f"rpo.{option}": fields[field] for field, option in option_names(kind).items()}
    of_methods = {f"rpo.{option}" for other in METHODS.values() for option in option_names(other).values()}
    for name in sorted(of_methods - own.keys()):
        if name in given and getattr(flat, "rpo.enable"):
            has = methods_with(name.removeprefix("rpo."))
            raise UsageError(
                f"--{name} is an option of --rpo.method {' and '.join(has)}; the method is {getattr(flat, 'rpo.method')}: "
                "leave it out, or use that method"
            )
        delattr(flat, name)
    for name, field in own.items():
        choices = field.metadata["choices"]
        if name not in given:
            setattr(flat, name, field.default)
        elif choices and getattr(flat, name) not in choices:
            raise UsageError(f"--{name} {getattr(flat, name)}: --rpo.method {kind.name} takes {', '.join(choices)}")


def _apply_presets(kind: type[Method], flat: argparse.Namespace, given: set[str]) -> None:
    """Set the options that come with the method and the presets, except those given by hand."""
    budget = min(getattr(flat, "rollout.max_new_tokens") or math.inf, getattr(flat, "data.max_len"))
    if "actor.eps_clip" in given:  # OpenRLHF: both limits, where eps_clip_low_high is not given
        given = given | {"actor.eps_clip_low_high"}
    names = [name.strip() for name in (getattr(flat, "rpo.preset") or "").split(",") if name.strip()]
    sources: dict[str, Any] = {f"--rpo.method {kind.name}": kind.sets}
    sources |= {f"--rpo.preset {name}": preset(name, budget) for name in names}
    for name, value in expand(sources, given).items():
        setattr(flat, name, value)


def _use_shipped_rewards(flat: argparse.Namespace, rpo: RPOConfig) -> None:
    """Set --reward.remote_url for a shipped reward: without it, OpenRLHF expects a reward model."""
    given = [name for name in _REWARDS if getattr(flat, name)]
    need(len(given) < 2, f"{' and '.join(f'--{name}' for name in given)} are sources of one reward: give one")
    if not rpo.reward.functions:
        need(
            given or getattr(flat, "train.agent_func_path"),
            "nothing gives rewards: --rpo.reward.functions (math, format, cosine), --reward.remote_url (a Python file "
            "or a server), or --reward.model_name_or_path (a reward model)",
        )
        return
    url = SHIPPED_REWARD
    if not rpo.enable:
        if rpo.reward.functions != "math":
            raise UsageError("--rpo.enable false (plain OpenRLHF) takes --rpo.reward.functions math, or a Python file")
        url = os.path.join(os.path.dirname(os.path.dirname(__file__)), "rewards", "math_file.py")
    setattr(flat, "reward.remote_url", url)


def _keep_out_wandb_key(flat: argparse.Namespace) -> None:
    """Hide the key: OpenRLHF needs a value to turn W&B on, and stores it. Raises UsageError for what could be a key."""
    key = getattr(flat, "logger.wandb.key")
    need(
        len(key or "") <= _LONGEST_WORD,
        "--logger.wandb.key: a key on the command line is in the process list: set WANDB_API_KEY or use `wandb login`, and "
        "give any short word here, such as on",
    )
    setattr(flat, "logger.wandb.key", key and "on")


def _make_files_absolute(flat: argparse.Namespace) -> None:
    """Make paths absolute: a run's processes start in the working directory of ``ray start`` on their nodes.

    A job with a ``working_dir`` starts in a copy of it, which every node has and Ray removes after the job. There, paths to
    read stay relative. Raises UsageError for a relative path to write.
    """
    in_copy = _RAYS_COPIES in os.getcwd()
    for name in _WRITTEN:
        value = getattr(flat, name) or ""
        is_url = "://" in value and not value.startswith(_SQLITE)
        if is_url and name != "rpo.cache.url":
            raise UsageError(f"--{name} {value}: give a folder; a bucket has to be mounted as one")
        path = value.removeprefix(_SQLITE)
        if is_url or not path:
            continue
        if in_copy and not os.path.isabs(path):
            raise UsageError(
                f"--{name} {path} would be in the copy of the working_dir that Ray made for this job and removes after it: "
                "give an absolute path"
            )
        setattr(flat, name, value.removesuffix(path) + os.path.abspath(path))
    if ".py:" in (method := getattr(flat, "rpo.method")):
        setattr(flat, "rpo.method", os.path.abspath(method))
    url = getattr(flat, "reward.remote_url")
    if url and url.endswith(".py"):  # the reward processes are children of the controller, on the driver's node
        setattr(flat, "reward.remote_url", os.path.abspath(url))
    for name in () if in_copy else _READ:
        if value := getattr(flat, name):
            setattr(flat, name, ",".join(_absolute_if_here(v) for v in value.split(",")))


def _absolute_if_here(value: str) -> str:
    """An existing file or folder as an absolute path, keeping a ``:COLUMN`` or ``@STEP`` (--rpo.init.source) after it."""
    head = next((head for mark in "@:" if os.path.exists(head := value.rpartition(mark)[0])), "")
    path = value if os.path.exists(value) else head
    return os.path.abspath(path) + value[len(path) :] if path else value


def check_options(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """Contradictions that OpenRLHF misses, or finds only after the engines have started. Raises UsageError."""
    need(
        rpo.enable or rpo.advantage.baseline != "zero",
        "--rpo.advantage.baseline zero (--rpo.preset raft) needs RPO: with --rpo.enable false OpenRLHF's estimator would "
        "still center the rewards. For RAFT on full paths use --rpo.method off",
    )
    need(args.actor.model_name_or_path, "--actor.model_name_or_path is missing: a model folder or a hub name")
    processes.check(args, dealt_evenly=rpo.enable and shares_prefixes(args))
    for flag, steps in (("eval.steps", args.eval.steps), ("ckpt.save_steps", args.ckpt.save_steps)):
        need(steps != 0, f"--{flag} {steps}: every how many steps, 1 or more, or -1 for never")
    _check_penalties(args)
    _check_correction(args)
    need(
        args.critic.freezing_steps < 0 or args.algo.advantage.estimator == "gae",
        f"--critic.freezing_steps {args.critic.freezing_steps}: in these steps the critic alone would train, and there is "
        "none: leave it out, or use --algo.advantage.estimator gae",
    )
    need(
        not args.ds.load_in_4bit,
        "weights of --ds.load_in_4bit cannot be sent to vLLM's engines, which hold weights of 16 bits: leave it out",
    )
    _check_deepspeed(args)
    need(
        rpo.enable or args.ds.param_dtype != "fp16",
        "--ds.param_dtype fp16 needs RPO: with --rpo.enable false OpenRLHF's engines hold bfloat16 weights. For plain "
        "sampling use --rpo.method off",
    )
    _check_lora(args, rpo)
    asynchronous.check(args, rpo)
    if rpo.enable:
        _check_rpo(args, rpo)


def _check_deepspeed(args: SimpleNamespace) -> None:
    """What DeepSpeed 0.19.6 cannot do, but says later or not at all."""
    stage, sums = args.ds.zero_stage, args.ds.grad_accum_dtype
    for flag in ("enable_sleep", "adam_offload"):
        need(
            stage or not getattr(args.ds, flag),
            f"--ds.{flag} needs --ds.zero_stage 1 or more: without it DeepSpeed has no states that it could move",
        )
    need(
        stage or args.ds.param_dtype != "fp16",
        "--ds.param_dtype fp16 needs --ds.zero_stage 1 or more: without it DeepSpeed divides gradients by a scale that it "
        "has not multiplied the loss by",
    )
    need(
        not sums_in_float32(args) or stage > 1 or (stage and args.ds.adam_offload),
        f"--ds.grad_accum_dtype {sums} at --ds.zero_stage {stage} and --ds.param_dtype bf16: DeepSpeed would end the run at "
        "the first optimizer step without a gradient, such as one of wrong answers alone. Use --ds.zero_stage 3",
    )


def sums_in_float32(args: SimpleNamespace) -> bool:
    """Whether the gradients of bfloat16 weights are to be summed in float32."""
    float32 = ("fp32", "float32", "float", "torch.float32")  # DeepSpeed's names for it
    return args.ds.grad_accum_dtype in float32 and args.ds.param_dtype in ("auto", "bf16")


def _check_rpo(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """What RPO, unlike plain OpenRLHF, needs or cannot do."""
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    need(
        samples % args.train.batch_size == 0,
        f"a step samples {args.rollout.batch_size} questions x {args.rollout.n_samples_per_prompt} = {samples}, "
        f"which is not a multiple of --train.batch_size {args.train.batch_size}",
    )
    _check_unsupported(args)
    need(
        rpo.drafts.mode != "auto" or args.vllm.tensor_parallel_size == 1,
        f"--rpo.drafts auto with --vllm.tensor_parallel_size {args.vllm.tensor_parallel_size}: the processes of an engine "
        "would each time their passes, and could decide differently. Use --rpo.drafts on, or off",
    )
    rpo.method.check_run(args)
    estimator = args.algo.advantage.estimator
    need(
        not (args.algo.kl.target and args.algo.kl.use_loss and args.train.dynamic_batch_enable),
        "--algo.kl.target follows the KL of the loss, which OpenRLHF logs divided by the number of micro-batches with "
        "--train.dynamic_batch_enable: leave one of the two out",
    )
    need(
        rpo.advantage.baseline != "zero" or estimator == "reinforce",
        f"--rpo.advantage.baseline zero makes a sample's reward its advantage, but --algo.advantage.estimator {estimator} "
        "subtracts a baseline: add --algo.advantage.estimator reinforce",
    )
    if rpo.shared_prefix == "on" and (reason := cannot_share(args)):
        raise UsageError(f"--rpo.shared_prefix on cannot work: {reason}")
    need(args.vllm.num_engines, "--vllm.num_engines is missing: RPO generates through vLLM, at least 1 engine")
    need(
        not (args.algo.dynamic_filtering_enable and not args.reward.remote_url),
        "--algo.dynamic_filtering_enable needs scores at rollout: a reward function or server, not a reward model",
    )
    need(
        args.reward.remote_url or rpo.init.mode != "bulk",
        "--rpo.init.mode bulk needs scores before training: a reward function or server, not a reward model; or "
        "--rpo.init.mode progressive",
    )
    need(
        not (args.train.enable_ema and (args.ds.zero_stage == 3 or args.ds.lora.rank or args.ds.tensor_parallel_size > 1)),
        "--train.enable_ema averages whole weights: --ds.zero_stage 2 or less, no --ds.lora.rank and no "
        "--ds.tensor_parallel_size",
    )


def _check_unsupported(args: SimpleNamespace) -> None:
    """OpenRLHF's options that RPO has no form of."""
    need(
        args.rollout.vllm_generate_batch_size == args.rollout.batch_size,
        f"--rollout.vllm_generate_batch_size {args.rollout.vllm_generate_batch_size} needs --rpo.enable false: RPO gives "
        "engines a whole batch at once (--rpo.engine_limits bounds what runs at a time)",
    )
    need(
        args.data.prompt_probs is None,
        "--data.prompt_probs mixes data sets by repeating rows, and RPO asks each question once a pass: leave it out and "
        "give the data in the proportion you want, or use --rpo.enable false",
    )
    need(
        not args.train.agent_func_path,
        "RPO replays single-turn paths: --train.agent_func_path needs --rpo.enable false",
    )
    need(
        args.data.max_images_per_prompt == 0,
        "RPO replays token ids, and images would be expanded twice: --data.max_images_per_prompt needs --rpo.enable false",
    )


def _check_lora(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """Adapters reach the engines through ``training/adapter.py``, which needs RPO and whole weights."""
    rank = args.ds.lora.rank
    need(
        rpo.enable or not (rank > 0 and args.vllm.num_engines),
        f"--ds.lora.rank {rank}: with --rpo.enable false, OpenRLHF {upstream.SUPPORTED_VERSION} sends an adapter's weights "
        "to vLLM under unknown names, and the first weight sync would fail. For a baseline with an adapter use "
        "--rpo.method off",
    )
    need(
        not rank or (args.ds.zero_stage < 3 and args.ds.tensor_parallel_size == 1),
        f"--ds.lora.rank {rank} needs whole weights in every process to send them to vLLM: --ds.zero_stage 2 or less (now "
        f"{args.ds.zero_stage}), and no --ds.tensor_parallel_size",
    )


def _check_penalties(args: SimpleNamespace) -> None:
    """OpenRLHF asserts this, but only after the first rollout."""
    buffer, longest = args.reward.overlong_buffer_len, longest_answer(args)
    need(
        buffer is None or buffer <= longest,
        f"--reward.overlong_buffer_len {buffer} is longer than the longest answer, {longest} tokens "
        "(--rollout.max_new_tokens, or --data.max_len)",
    )


def longest_answer(args: SimpleNamespace) -> int:
    """Tokens that an answer to the shortest prompt may have."""
    return min(args.rollout.max_new_tokens or args.data.max_len, args.data.max_len)


def _check_correction(args: SimpleNamespace) -> None:
    """What OpenRLHF's loss (models/loss.py) refuses, but only in the actors."""
    names = ("mode", "level", "gating", "threshold")
    mode, level, gating, threshold = (getattr(args.algo.advantage, f"is_correction_{name}") for name in names)
    need(
        mode != "clip" or (level != "seq" and gating == "ratio"),
        "--algo.advantage.is_correction_mode clip bounds a token's weight: it needs --algo.advantage.is_correction_level "
        "token and --algo.advantage.is_correction_gating ratio",
    )
    need(
        gating == "ratio" or level == "off" or threshold[0] <= 0,
        f"--algo.advantage.is_correction_gating {gating} has an upper bound alone: add "
        "--algo.advantage.is_correction_threshold NUMBER",
    )
