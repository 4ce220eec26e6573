"""The command line: OpenRLHF's options, ours, presets, and every check that needs nothing but the options."""

import argparse
import difflib
import os
from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_rpo import upstream
from openrlhf_rpo.algo.cut import cut_rule
from openrlhf_rpo.algo.presets import expand
from openrlhf_rpo.algo.update import update_rule
from openrlhf_rpo.algo.user_rules import UserRuleError
from openrlhf_rpo.config import VERIFY, OptionError, RPOConfig, add_options, defaults_with
from openrlhf_rpo.training.passes import cannot_share, shares_prefixes
from openrlhf_rpo.upstream import UsageError

_UNSET = object()
DRY_RUN = "--dry-run"
_WRITTEN = ("ckpt.path", "ckpt.output_dir", "rpo.cache.url", "logger.tensorboard_dir")
_READ = (
    *("actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"),
    *("data.prompt_dataset", "eval.dataset", "rpo.init.source"),
)
_SQLITE = "sqlite:///"
_RAYS_COPIES = "/runtime_resources/working_dir_files/"
# What only a rule that cuts, and what only an update rule that chooses, reads.
_CUTS, _CHOICE = ("rpo.cut.max", "rpo.cut.scope"), ("rpo.update.epsilon", "rpo.update.admit")
_TURNS = ("rpo.cut.after_all_right", "rpo.cut.after_all_wrong")
SHIPPED_REWARD = "rpo"  # stands in --reward.remote_url for --rpo.reward.functions


def build_parser() -> argparse.ArgumentParser:
    """OpenRLHF's parser with the ``--rpo.*`` options added."""
    parser = upstream.build_parser()
    parser.prog = "python -m openrlhf_rpo.cli.train_rpo_ray"
    parser.description = (
        "Train a reasoning model with RPO on OpenRLHF: every OpenRLHF option, and --rpo.*. With --dry-run the command is "
        "checked against this machine, the data and the cluster, and nothing is trained (the same as openrlhf-rpo doctor)."
    )
    add_options(parser)
    return parser


def parse(argv: list[str]) -> SimpleNamespace:
    """Hierarchical options (``args.algo.kl.init_coef``, ``args.rpo.cut.max``), presets applied, checked.

    Raises UsageError or OptionError with a message for the user.
    """
    parser = build_parser()
    flat, given = _parse_given(parser, argv)
    _choose_cut_rule(flat, given | _apply_presets(flat, given))
    _check_cut_options(flat, given)
    rpo = RPOConfig.from_namespace(upstream.nest(flat).rpo)
    _use_shipped_rewards(flat, rpo)
    _make_files_absolute(flat)
    args = upstream.finish_args(flat)
    try:
        check_options(args, rpo)
    except UserRuleError as error:
        raise UsageError(f"--rpo.cut.rule or --rpo.update.rule: {error}") from error
    return args


def given_options(words: Sequence[str]) -> set[str]:
    """``--name`` of every option among these words, in full where they shorten it. Raises UsageError for unknown ones."""
    return {f"--{name}" for name in _parse_given(build_parser(), list(words))[1]}


def _parse_given(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[argparse.Namespace, set[str]]:
    """All options with their defaults, and the names of those that were given by hand."""
    marked = argparse.Namespace(**{a.dest: _UNSET for a in parser._actions if a.dest != "help"})
    known, unknown = parser.parse_known_args(argv, marked)
    if unknown:
        raise UsageError(_unknown_options(parser, unknown))
    given = {name for name, value in vars(known).items() if value is not _UNSET}
    for name in vars(known).keys() - given:
        setattr(known, name, parser.get_default(name))
    return known, given


def _unknown_options(parser: argparse.ArgumentParser, unknown: list[str]) -> str:
    known = [option for action in parser._actions for option in action.option_strings]
    lines = []
    for word in (w.split("=")[0] for w in unknown if w.startswith("-")):
        near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
        lines.append(f"unknown option {word}" + (f": did you mean {near[0]}?" if near else ""))
    return "\n".join(lines) or f"unexpected argument {unknown[0]!r}: it belongs to no option"


def _apply_presets(flat: argparse.Namespace, given: set[str]) -> set[str]:
    """The names of the options that the presets set."""
    budget = getattr(flat, "rollout.max_new_tokens") or getattr(flat, "data.max_len")
    try:
        values = expand(getattr(flat, "rpo.preset"), given, budget)
    except ValueError as error:
        raise UsageError(f"--rpo.preset: {error}") from None
    for name, value in values.items():
        setattr(flat, name, value)
    return set(values)


def _choose_cut_rule(flat: argparse.Namespace, given: set[str]) -> None:
    """The cut rule where none is given, and what its other options are by default."""
    if "rpo.cut.rule" not in given and _speaks_against_verify(flat, given):
        setattr(flat, "rpo.cut.rule", "uniform")
    for name, value in defaults_with(getattr(flat, "rpo.cut.rule")).items():
        if name not in given:
            setattr(flat, name, value)


def _speaks_against_verify(flat: argparse.Namespace, given: set[str]) -> bool:
    """Whether something is given that verified reuse cannot follow, or that only a rule that cuts reads."""
    value = vars(flat)
    comparable = value["rollout.temperature"] == value["rollout.top_p"] == 1 and value["rpo.cache.log_probs"]
    turns = {value[name] for name in _TURNS}
    return (
        value["rpo.init.mode"] != "progressive"
        or not comparable
        or bool(given & {*_CUTS, *_CHOICE})
        or ("rpo.update.rule" in given and value["rpo.update.rule"] != "every")
        or value["rpo.prefix_loss.mode"] == "segment"
        or not turns <= {None, "bare", VERIFY}
    )


def _check_cut_options(flat: argparse.Namespace, given: set[str]) -> None:
    """Options given by hand that the rules do not read, so that they would have no effect."""
    value = vars(flat)
    if not value["rpo.enable"]:
        return
    rules = {value["rpo.cut.rule"], *(value[name] for name in _TURNS)} - {None, "bare"}
    unread = sorted(given & set(_CUTS)) if rules == {VERIFY} else []
    unread += sorted(given & set(_CHOICE)) if value["rpo.update.rule"] == "every" else []
    _need(
        not unread,
        f"--rpo.cut.rule {value['rpo.cut.rule']} with --rpo.update.rule {value['rpo.update.rule']} does not read "
        f"--{' or --'.join(unread)}: leave it out, or take a rule that cuts, as --rpo.cut.rule uniform",
    )
    _need(
        VERIFY in rules or "rpo.cut.lenience" not in given,
        f"--rpo.cut.lenience is read by --rpo.cut.rule verify alone, and the rule is {value['rpo.cut.rule']}: leave it out",
    )


def _use_shipped_rewards(flat: argparse.Namespace, rpo: RPOConfig) -> None:
    """Upstream takes a missing --reward.remote_url for a reward model; a shipped reward is neither."""
    if not rpo.reward.functions:
        sources = ("reward.remote_url", "reward.model_name_or_path", "train.agent_func_path")
        _need(
            any(getattr(flat, name) for name in sources),
            "nothing gives rewards: --rpo.reward.functions (math, format, cosine), --reward.remote_url (a Python file "
            "or a server), or --reward.model_name_or_path (a reward model)",
        )
        return
    if getattr(flat, "reward.remote_url"):
        raise UsageError("--rpo.reward.functions and --reward.remote_url are two sources of one reward: give one")
    url = SHIPPED_REWARD
    if not rpo.enable:
        if rpo.reward.functions != "math":
            raise UsageError("--rpo.enable false (plain OpenRLHF) takes --rpo.reward.functions math, or a Python file")
        url = os.path.join(os.path.dirname(os.path.dirname(__file__)), "rewards", "math_file.py")
    setattr(flat, "reward.remote_url", url)


def _make_files_absolute(flat: argparse.Namespace) -> None:
    """The processes of a run have other working directories than the command: those of ``ray start`` on their nodes.

    A job with a ``working_dir`` has a copy of it on every node instead, which Ray removes after the job: what is read
    may lie there and keeps its name, what is written may not.
    """
    in_copy = _RAYS_COPIES in os.getcwd()
    for name in _WRITTEN:
        prefix, path = _file_of(getattr(flat, name))
        if path and in_copy and not os.path.isabs(path):
            raise UsageError(
                f"--{name} {path} would be in the copy of the working_dir that Ray made for this job and removes after it: "
                "give an absolute path"
            )
        if path:
            setattr(flat, name, prefix + os.path.abspath(path))
    for name in ("rpo.cut.rule", *_TURNS, "rpo.update.rule"):
        if (value := getattr(flat, name)) and ".py:" in value:
            setattr(flat, name, os.path.abspath(value))
    url = getattr(flat, "reward.remote_url")
    if url and url.endswith(".py"):  # the reward processes are children of the controller, on the driver's node
        setattr(flat, "reward.remote_url", os.path.abspath(url))
    for name in () if in_copy else _READ:
        if value := getattr(flat, name):
            setattr(flat, name, ",".join(_absolute_if_here(v) for v in value.split(",")))


def _absolute_if_here(value: str) -> str:
    """A file or folder of this host, also with the ``:COLUMN`` or ``@STEP`` of --rpo.init.source behind it."""
    head = next((head for mark in "@:" if os.path.exists(head := value.rpartition(mark)[0])), "")
    path = value if os.path.exists(value) else head
    return os.path.abspath(path) + value[len(path) :] if path else value


def _file_of(value: str | None) -> tuple[str, str | None]:
    """A value as (``sqlite:///`` or nothing, the path behind it); no path for the URL of a server."""
    if value and "://" in value and not value.startswith(_SQLITE):
        return "", None
    prefix = _SQLITE if value and value.startswith(_SQLITE) else ""
    return prefix, value and value.removeprefix(prefix)


def check_options(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """Contradictions that OpenRLHF does not know or finds only after the engines have started."""
    _need(
        rpo.enable or rpo.advantage.baseline != "zero",
        "--rpo.advantage.baseline zero (--rpo.preset raft) is not OpenRLHF's: with --rpo.enable false its estimator would "
        "center the rewards all the same. For RAFT on full paths use --rpo.cut.fresh_share 1 --rpo.replay.share 0",
    )
    _need(args.actor.model_name_or_path, "--actor.model_name_or_path is missing: a model folder or a hub name")
    _check_batches(args, "actor", dealt_evenly=rpo.enable and shares_prefixes(args))
    for flag, steps in (("eval.steps", args.eval.steps), ("ckpt.save_steps", args.ckpt.save_steps)):
        _need(steps >= 1 or steps == -1, f"--{flag} {steps}: every how many steps, 1 or more, or -1 for never")
    logging = args.logger.logging_steps
    _need(logging >= 1, f"--logger.logging_steps {logging}: every how many steps, 1 or more")
    _check_penalties(args)
    for flag, wrong in (
        ("--ds.param_dtype fp16", args.ds.param_dtype == "fp16"),
        ("--ds.load_in_4bit", args.ds.load_in_4bit),
    ):
        _need(not wrong, f"{flag} cannot be sent to vLLM's engines, which hold bfloat16 weights: leave it out")
    _check_lora(args, rpo)
    _check_colocation(args)
    if rpo.enable:
        _check_rpo(args, rpo)
    if args.algo.advantage.estimator == "gae":
        _check_batches(args, "critic", dealt_evenly=False)


def _check_rpo(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """What RPO cannot do, or needs besides."""
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    _need(
        samples % args.train.batch_size == 0,
        f"a step samples {args.rollout.batch_size} questions x {args.rollout.n_samples_per_prompt} = {samples}, "
        f"which is not a multiple of --train.batch_size {args.train.batch_size}",
    )
    _need(
        not args.train.agent_func_path,
        "RPO replays single-turn paths: --train.agent_func_path needs --rpo.enable false",
    )
    _need(
        args.data.max_images_per_prompt == 0,
        "RPO replays token ids, and images would be expanded twice: --data.max_images_per_prompt needs --rpo.enable false",
    )
    _need(
        not args.train.async_enable,
        "--train.async_enable with RPO is refused: a rollout that runs ahead would read paths that the step before it "
        "has not replaced yet. Leave it out, or use --rpo.enable false",
    )
    _check_rules(args, rpo)
    reason = cannot_share(args)
    _need(rpo.shared_prefix != "on" or reason is None, f"--rpo.shared_prefix on cannot work: {reason}")
    _need(args.vllm.num_engines, "--vllm.num_engines is missing: RPO generates through vLLM, at least 1 engine")
    _need(
        not (args.algo.dynamic_filtering_enable and not args.reward.remote_url),
        "--algo.dynamic_filtering_enable needs scores at rollout: a reward function or server, not a reward model",
    )
    _need(
        args.reward.remote_url or rpo.init.mode != "bulk",
        "--rpo.init.mode bulk needs scores before training: a reward function or server, not a reward model; or "
        "--rpo.init.mode progressive",
    )
    _need(
        not (args.train.enable_ema and (args.ds.zero_stage == 3 or args.ds.lora.rank)),
        "--train.enable_ema averages whole weights: --ds.zero_stage 2 or less, and no --ds.lora.rank",
    )


def _check_lora(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """An adapter reaches the engines through ``training/adapter.py``, which plain OpenRLHF does not have."""
    rank = args.ds.lora.rank
    _need(
        rpo.enable or not (rank > 0 and args.vllm.num_engines),
        f"--ds.lora.rank {rank}: OpenRLHF {upstream.SUPPORTED_VERSION} by itself (--rpo.enable false) sends an adapter's "
        "weights to vLLM under names that vLLM does not know, and the first weight sync would fail. For a baseline with "
        "an adapter use --rpo.cut.fresh_share 1, which starts every group from the bare question",
    )
    _need(
        not rank or (args.ds.zero_stage < 3 and args.ds.tensor_parallel_size == 1),
        f"--ds.lora.rank {rank} needs whole weights in every process to send them to vLLM: --ds.zero_stage 2 or less (now "
        f"{args.ds.zero_stage}), and no --ds.tensor_parallel_size",
    )


def _check_batches(args: SimpleNamespace, name: str, dealt_evenly: bool) -> None:
    """Every process of a trained model gets as many micro-batches as the others; one with fewer leaves them waiting."""
    group = getattr(args, name)
    replicas = max(1, group.num_nodes * group.num_gpus_per_node // args.ds.ring_attn_size // args.ds.tensor_parallel_size)
    batch, micro, forward = args.train.batch_size, args.train.micro_batch_size, args.rollout.micro_batch_size
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    _need(
        batch % (micro * replicas) == 0,
        f"--train.batch_size {batch} is not a multiple of --train.micro_batch_size {micro} x {replicas} "
        f"{name} processes (rings and tensor parallel groups count as one)",
    )
    _need(
        replicas == 1 or dealt_evenly or args.train.dynamic_batch_enable or samples % (forward * replicas) == 0,
        f"a step's {samples} samples are not a multiple of --rollout.micro_batch_size {forward} x "
        f"{replicas} {name} processes, and one that got fewer than the others would leave them waiting",
    )


def _check_penalties(args: SimpleNamespace) -> None:
    """Upstream asserts these after the first rollout."""
    buffer, longest = args.reward.overlong_buffer_len, args.rollout.max_new_tokens or args.data.max_len
    _need(
        buffer is None or buffer <= longest,
        f"--reward.overlong_buffer_len {buffer} is longer than the longest answer, {longest} tokens "
        "(--rollout.max_new_tokens, else --data.max_len)",
    )
    coefficient = args.reward.stop_properly_penalty_coef
    _need(
        coefficient is None or coefficient <= 1,
        f"--reward.stop_properly_penalty_coef {coefficient}: it scales a reward, 0 to 1, or is the reward itself, below 0",
    )


def _check_rules(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """What cut rules, baseline and weight ask of OpenRLHF's options; a rule of the user's own is loaded once to see it."""
    rules = {name: cut_rule(name) for name in rpo.cut.rules}
    update_rule(rpo.update.rule)
    n = args.rollout.n_samples_per_prompt
    _need(
        "tree" not in rpo.cut.rules or n % rpo.cut.depths == 0,
        f"--rpo.cut.rule tree: --rollout.n_samples_per_prompt {n} is not a multiple of --rpo.cut.depths {rpo.cut.depths}",
    )
    for name, rule in rules.items():
        _need(
            not rule.scores or (args.rollout.temperature == 1.0 and args.rollout.top_p == 1.0),
            f"cut rule {name} compares log-probs at temperature 1: it needs --rollout.temperature 1 and "
            f"--rollout.top_p 1 (they are {args.rollout.temperature:g} and {args.rollout.top_p:g})",
        )
        _need(rule.scores or rule.rejected is None, f"cut rule {name}: rejected reads the scores, so it needs scores=True")
    estimator = args.algo.advantage.estimator
    segments = rpo.prefix_loss.mode == "segment"
    _need(
        not segments or estimator != "gae",
        "--rpo.prefix_loss.mode segment credits tokens by the group's rewards, --algo.advantage.estimator gae by a critic: "
        "use another estimator",
    )
    for name, rule in rules.items():
        _need(
            not (segments and rule.each),
            f"--rpo.prefix_loss.mode segment compares depths of one path, and cut rule {name} gives every sample "
            "a path of its own: use --rpo.cut.rule tree, or uniform with --rpo.cut.scope sample",
        )
    _need(
        rpo.advantage.baseline != "history" or estimator not in ("group_norm", "rloo", "dr_grpo", "reinforce_baseline"),
        f"--rpo.advantage.baseline history is lost in --algo.advantage.estimator {estimator}, which takes the group's mean "
        "from every reward: add --algo.advantage.estimator reinforce",
    )
    _need(
        rpo.advantage.baseline != "zero" or estimator != "gae",
        "--rpo.advantage.baseline zero makes a sample's reward its advantage, --algo.advantage.estimator gae asks a critic: "
        "add --algo.advantage.estimator reinforce",
    )
    _need(
        rpo.advantage.weight == "response" or args.actor.loss_agg_mode == "seq-mean-token-mean",
        "--rpo.advantage.weight path changes what a sequence weighs, and --actor.loss_agg_mode token-mean weighs tokens: "
        "add --actor.loss_agg_mode seq-mean-token-mean",
    )


def _check_colocation(args: SimpleNamespace) -> None:
    """Groups that share devices must fit each other; OpenRLHF finds out when Ray, or every engine, has started."""
    train, devices = args.train, {}
    for name in ("actor", "ref", "critic", "reward"):
        group = getattr(args, name)
        devices[name] = group.num_nodes * group.num_gpus_per_node
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    with_critic = args.critic.model_name_or_path is not None

    def same(one: str, other: str, flag: str) -> None:
        a, b = getattr(args, one), getattr(args, other)
        _need(
            (a.num_nodes, a.num_gpus_per_node) == (b.num_nodes, b.num_gpus_per_node),
            f"{flag}: --{one}.num_nodes {a.num_nodes} and --{one}.num_gpus_per_node {a.num_gpus_per_node} must be "
            f"those of --{other} ({b.num_nodes} and {b.num_gpus_per_node})",
        )

    if args.algo.kl.init_coef > 0 and (train.colocate_all or train.colocate_actor_ref):
        same("ref", "actor", "--train.colocate_all" if train.colocate_all else "--train.colocate_actor_ref")
    if with_critic and train.colocate_critic_reward:
        same("critic", "reward", "--train.colocate_critic_reward")
    elif train.colocate_all:
        sharing = (["critic"] if with_critic else []) + ([] if args.reward.remote_url else ["reward"])
        for name in sharing:
            _need(
                devices[name] <= devices["actor"],
                f"--train.colocate_all: --{name}.num_nodes x --{name}.num_gpus_per_node is {devices[name]}, "
                f"more than the {devices['actor']} devices of the actor",
            )
    if train.colocate_all and not train.async_enable and engines:
        _need(
            engines == devices["actor"],
            f"--train.colocate_all: --vllm.num_engines x --vllm.tensor_parallel_size is {engines}, "
            f"but the actor has {devices['actor']} devices: they must be equal",
        )


def _need(condition: object, message: str) -> None:
    if not condition:
        raise UsageError(message)


__all__ = ["OptionError", "UsageError", "build_parser", "given_options", "parse"]
