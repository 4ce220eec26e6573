"""Checks that the processes of every model fill their groups, get equal shares, and fit on the devices they share."""

from types import SimpleNamespace

from openrlhf_rpo.errors import need
from openrlhf_rpo.upstream import n_processes, n_replicas


def check(args: SimpleNamespace, dealt_evenly: bool) -> None:
    """Raises UsageError for what OpenRLHF finds after Ray, or even every engine, has started.

    ``dealt_evenly``: actors share any number of samples evenly.
    """
    _check_colocation(args)
    _check_places(args, dealt_evenly)
    _check_batches(args, "actor", dealt_evenly)
    if args.algo.advantage.estimator == "gae":
        _check_batches(args, "critic", dealt_evenly)
        actors, critics = n_replicas(args, "actor"), n_replicas(args, "critic")
        need(
            actors % critics == 0 or not (dealt_evenly or args.train.dynamic_batch_enable),
            f"--critic.num_nodes x --critic.num_gpus_per_node makes {critics} critic processes, which must divide the "
            f"actor's, {actors} (rings and tensor parallel groups count as one), for each to get as many micro-batches",
        )
    for name in _only_forward(args):
        _check_batches(args, name, dealt_evenly)


def _check_places(args: SimpleNamespace, dealt_evenly: bool) -> None:
    """The processes of a model form rings and tensor parallel groups; those that only run forward get a micro-batch each.

    OpenRLHF cuts the micro-batches into equal parts, rounded up, so that the last processes may get none.
    """
    together = args.ds.ring_attn_size * args.ds.tensor_parallel_size
    samples, micro = args.rollout.batch_size * args.rollout.n_samples_per_prompt, args.rollout.micro_batch_size
    actors = n_replicas(args, "actor")
    shares = actors if dealt_evenly else 1
    batches = shares * -(-(samples // shares) // micro)
    forward = _only_forward(args)
    for name in ("actor", *["critic"] * (args.algo.advantage.estimator == "gae"), *forward):
        devices = n_processes(getattr(args, name))
        where = f"--{name}.num_nodes x --{name}.num_gpus_per_node is {devices}"
        need(
            devices % together == 0,
            f"{where}, not a multiple of --ds.ring_attn_size x --ds.tensor_parallel_size, {together}",
        )
        if name not in forward:
            continue
        processes = devices // together
        if args.train.dynamic_batch_enable:
            need(
                actors % processes == 0,
                f"{where}: with --train.dynamic_batch_enable it must divide the actor's, {actors}, for each process to get "
                "a micro-batch",
            )
        else:
            dealt = f"{where}, and a step's {samples} samples make {batches} batches of --rollout.micro_batch_size {micro}"
            need(
                -(-batches // -(-batches // processes)) == processes,
                f"{dealt}, dealt {-(-batches // processes)} at a time: each process needs one. Lower "
                f"--{name}.num_gpus_per_node or --rollout.micro_batch_size",
            )
            need(
                args.ds.zero_stage < 3 or batches % processes == 0,
                f"{dealt}: at --ds.zero_stage 3 each process needs equally many, or the others wait for one with fewer",
            )


def _only_forward(args: SimpleNamespace) -> list[str]:
    return ["ref"] * (args.algo.kl.init_coef > 0) + ["reward"] * (not args.reward.remote_url)


def _check_batches(args: SimpleNamespace, name: str, dealt_evenly: bool) -> None:
    """All processes of a trained model need equally many micro-batches: the others would wait for one with fewer. DeepSpeed
    needs the training batch to divide evenly among each model's."""
    replicas = n_replicas(args, name)
    batch, micro, forward = args.train.batch_size, args.train.micro_batch_size, args.rollout.micro_batch_size
    samples = args.rollout.batch_size * args.rollout.n_samples_per_prompt
    need(
        batch % (micro * replicas) == 0,
        f"--train.batch_size {batch} is not a multiple of --train.micro_batch_size {micro} x {replicas} "
        f"{name} processes (rings and tensor parallel groups count as one)",
    )
    even = dealt_evenly or args.train.dynamic_batch_enable or samples % (forward * replicas) == 0
    need(
        replicas == 1 or even or name in _only_forward(args),
        f"a step's {samples} samples are not a multiple of --rollout.micro_batch_size {forward} x "
        f"{replicas} {name} processes: the others would wait for one that got fewer",
    )


def _check_colocation(args: SimpleNamespace) -> None:
    """Models that share devices must match in size."""
    train = args.train
    devices = {name: n_processes(getattr(args, name)) for name in ("actor", "critic", "reward")}
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    with_critic = args.critic.model_name_or_path is not None

    if args.algo.kl.init_coef > 0 and (train.colocate_all or train.colocate_actor_ref):
        _need_same_size(args, "ref", "actor", "colocate_all" if train.colocate_all else "colocate_actor_ref")
    if with_critic and train.colocate_critic_reward:
        _need_same_size(args, "critic", "reward", "colocate_critic_reward")
    elif train.colocate_all:
        sharing = (["critic"] if with_critic else []) + ([] if args.reward.remote_url else ["reward"])
        for name in sharing:
            need(
                devices[name] <= devices["actor"],
                f"--train.colocate_all: --{name}.num_nodes x --{name}.num_gpus_per_node is {devices[name]}, "
                f"more than the {devices['actor']} devices of the actor",
            )
    if train.colocate_all and not train.async_enable and engines:
        need(
            engines == devices["actor"],
            f"--train.colocate_all: --vllm.num_engines x --vllm.tensor_parallel_size is {engines}, "
            f"but the actor has {devices['actor']} devices: they must be equal",
        )


def _need_same_size(args: SimpleNamespace, one: str, other: str, flag: str) -> None:
    a, b = getattr(args, one), getattr(args, other)
    need(
        (a.num_nodes, a.num_gpus_per_node) == (b.num_nodes, b.num_gpus_per_node),
        f"--train.{flag}: --{one}.num_nodes {a.num_nodes} and --{one}.num_gpus_per_node {a.num_gpus_per_node} must be "
        f"those of --{other} ({b.num_nodes} and {b.num_gpus_per_node})",
    )
