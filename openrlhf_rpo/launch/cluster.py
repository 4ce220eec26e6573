"""Ray for a run: the devices that a command needs, the connection, and failures of the cluster."""

import json
import os
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo import platform
from openrlhf_rpo.credentials import objection
from openrlhf_rpo.errors import UsageError, end_on_term, reason_of
from openrlhf_rpo.launch.failures import chain_of
from openrlhf_rpo.platform.cpu import FLOAT32, has_nvcc
from openrlhf_rpo.upstream import n_processes

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # what a submitted job was given, as JSON
Need = tuple[str, int, str]  # component, number of devices, the flags that set it


def required_devices(args: SimpleNamespace) -> list[Need]:
    """Devices by component, as OpenRLHF's ``train`` will request them: GPUs, or CPUs on a CPU host."""
    actors = n_processes(args.actor)
    engines = (args.vllm.num_engines or 0) * args.vllm.tensor_parallel_size
    reference = n_processes(args.ref) if args.algo.kl.init_coef > 0 else 0
    critic = n_processes(args.critic) if args.critic.model_name_or_path else 0
    reward = 0 if args.reward.remote_url else n_processes(args.reward)
    if args.train.colocate_all or args.train.colocate_actor_ref:
        reference = 0
    if args.train.colocate_all and not args.train.async_enable:
        engines = 0
    if args.train.colocate_critic_reward and critic:
        reward = 0  # these two get their own devices even with colocate_all
    elif args.train.colocate_all:
        critic = reward = 0
    needs = [
        ("actor", actors, "--actor.num_nodes x --actor.num_gpus_per_node"),
        ("vLLM engines", engines, "--vllm.num_engines x --vllm.tensor_parallel_size"),
        ("reference", reference, "--ref.num_nodes x --ref.num_gpus_per_node (none with --algo.kl.init_coef 0)"),
        ("critic", critic, "--critic.num_nodes x --critic.num_gpus_per_node"),
        ("reward model", reward, "--reward.num_nodes x --reward.num_gpus_per_node"),
    ]
    return [need for need in needs if need[1]]


def check_resources(needs: list[Need], available: dict[str, float], kind: str) -> None:
    """Raises UsageError if devices are too few: Ray would wait silently forever."""
    total = sum(number for _, number, _ in needs)
    have = int(available.get(kind, 0))
    if total <= have:
        return
    asked = "\n".join(f"  {what}: {number} ({flags})" for what, number, flags in needs)
    remedy = f"start Ray with --num-{kind.lower()}s {total} or more" if kind == "CPU" else "add GPUs to the cluster"
    raise UsageError(
        f"this command asks for {total} {kind}s, the Ray cluster has {have}:\n{asked}\n"
        f"Lower one of these flags, colocate with --train.colocate_all, or {remedy}."
    )


def check_devices(needs: list[Need], available: dict[str, float], device: str) -> None:
    """``check_resources`` for every kind of device that the run uses."""
    for kind in ("GPU", "CPU") if device == "cuda" else ("CPU",):  # a process with a GPU also takes a CPU
        check_resources(needs, available, kind)


def choose_device(args: SimpleNamespace) -> str:
    """ "cpu" or "cuda", from --rpo.device; call it before importing OpenRLHF, which is patched for the device.

    Also allows or forbids this process to run models' code (--rpo.trust_remote_code).
    With RAY_ADDRESS the cluster decides: its head node, where the driver may run, need not have a GPU.
    """
    platform.guard.allow(args.rpo.trust_remote_code)
    address = os.environ.get("RAY_ADDRESS")
    ask_cluster = address and args.rpo.device == "auto"
    gpus = resources_of(address)[0].get("GPU", 0.0) if ask_cluster else 0.0
    device = platform.choose(args.rpo.device, gpus)
    adapt_options(args, device)
    return device


def connect(args: SimpleNamespace, device: str) -> None:
    """Connect to the cluster at RAY_ADDRESS (set in a submitted job), else to this host's Ray, else start one.

    On a CPU host without RAY_ADDRESS, always start one. Raises UsageError when the cluster has too few devices.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS")
    needs = required_devices(args)
    platform.prepare()
    workers = _workers()
    if address:
        join(address, **workers)
    elif device == "cpu":
        # Each process takes one CPU in Ray's books, and a laptop may run more processes than it has cores. "local",
        # because the number of CPUs of a Ray that is already running cannot be set.
        cpus = max(os.cpu_count() or 1, sum(n for _, n, _ in needs))
        start_patiently(lambda: init_ray(address="local", num_cpus=cpus, num_gpus=0, include_dashboard=False, **workers))
    else:
        init_ray(**workers)
    try:
        _check_joined(needs, device, patience=5 if address else 0)
    except UsageError:
        ray.shutdown()
        raise
    kind, total = "GPU" if device == "cuda" else "CPU", sum(number for _, number, _ in needs)
    free = int(ray.available_resources().get(kind, 0))
    if free < total:
        print(f"Waiting for {kind}s: the command asks for {total}, and {free} of the cluster's are free now", flush=True)


def _workers() -> dict[str, Any]:
    """Options of ``ray.init`` for the run's processes."""
    import ray

    job = ray.job_config.JobConfig()
    if not platform.imports_from_here():
        # Ray puts the current folder first on the workers' path unless it has uploaded one. Where this process does not look
        # for modules, the workers must not either: the folder may be a model's, with a file of its own named numpy.py.
        job._runtime_env_has_working_dir = lambda: True
    environment = {
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
        "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN"),
        "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": os.environ.get("RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", "1"),
        **platform.worker_env(),
    }
    # Ray refuses a variable that the job's own runtime_env has, even with the same value.
    of_job = json.loads(os.environ.get(JOB_CONFIG, "{}")).get("runtime_env", {}).get("env_vars", {})
    environment = {name: value for name, value in environment.items() if of_job.get(name) != value}
    runtime_env = {"worker_process_setup_hook": platform.SETUP_HOOK, "env_vars": environment}
    return {"runtime_env": runtime_env, "job_config": job}


def _check_joined(needs: list[Need], device: str, patience: float) -> None:
    """``check_devices`` of the cluster, retried for ``patience`` seconds: a node registers just after ``ray start``."""
    import ray

    end = time.monotonic() + patience
    while True:
        try:
            return check_devices(needs, ray.cluster_resources(), device)
        except UsageError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.5)


def init_ray(**options: Any) -> None:
    """``ray.init``, without letting TERM end the command silently."""
    import ray

    ray.init(**options)
    end_on_term()


def join(address: str, **options: Any) -> None:
    """Connect to the cluster at ``address``. Raises UsageError when none answers there."""
    if objection(address):
        raise UsageError("RAY_ADDRESS holds a login or a query: give HOST:PORT")
    if address.startswith("ray://"):
        raise UsageError(
            f"RAY_ADDRESS {address} is Ray Client: data, cache and checkpoints would be read on this machine and "
            "written on the cluster's head. Submit the command with `ray job submit`, or run it on a node of the cluster"
        )
    remedy = "start one with `ray start --head`, correct the address, or unset it"
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray would try silently for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        init_ray(address=address, **options)
    except OSError as error:  # ConnectionError is one
        raise UsageError(f"no Ray cluster answers at RAY_ADDRESS {address} ({reason_of(error)}): {remedy}") from error


def resources_of(address: str) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Resources of the cluster at ``address``: in total, and of each live node. Raises UsageError."""
    import ray

    join(address, log_to_driver=False)
    try:
        return ray.cluster_resources(), [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


def logins() -> dict[str, str]:
    """The variables with which the driver's user logs in to PostgreSQL and W&B.

    A Ray that was already running does not pass them on, and ``runtime_env`` would write them to Ray's logs.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(("PG", "WANDB_"))}


def settled(error: BaseException, patience: float = 45) -> BaseException:
    """The error itself, or the one that names the dead process once Ray knows it, after at most ``patience`` seconds.

    A call to a process whose node has just died fails with "unavailable", which names nothing. Ray takes seconds to find
    the cause, half a minute when the node no longer answers.
    """
    from ray._private.state import actors  # ray.util.state needs the dashboard
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    first = chain_of(error)[-1]
    if not isinstance(first, ActorUnavailableError):
        return error
    end = time.monotonic() + patience
    while time.monotonic() < end:
        actor = actors(first.actor_id)
        if actor.get("State") == "DEAD":
            return ActorDiedError(actor["DeathCause"].actor_died_error_context)
        time.sleep(1)
    return error


def start_patiently(start: Callable[[], object], attempts: int = 3) -> None:
    """Start a local Ray, retrying timeouts: Ray gives its node 30 seconds, which a busy laptop may exceed."""
    for left in reversed(range(attempts)):
        try:
            start()
            return
        except Exception as error:  # Ray raises nothing narrower
            if "timed out during startup" not in str(error) or not left:
                raise
            print("Ray did not come up within its 30 seconds, this host is busy: trying again", flush=True)


def adapt_options(args: SimpleNamespace, device: str) -> None:
    """Give the options whose default is "auto" their values on ``device``. Raises UsageError for those that need a GPU."""
    if device == "cpu":
        _adapt_options_to_cpu(args)
    elif args.ds.param_dtype == "auto":
        args.ds.param_dtype = "bf16"
    if args.ds.attn_implementation == "flash_attention_2" and not platform.has_flash_attn():
        args.ds.attn_implementation = "sdpa"  # the same attention, in torch's kernels
    if device == "cuda" and args.ds.adam_offload and not has_nvcc():
        raise UsageError(
            "--ds.adam_offload: DeepSpeed compiles this optimizer with nvcc, which is not on this host: install the CUDA "
            "toolkit, or leave the option out"
        )
    if device == "cuda" and args.ds.enable_sleep and args.ds.zero_stage == 3 and not args.ds.adam_offload:
        muon = "muon" in (args.actor.optim, args.critic.optim)
        if muon or not has_nvcc():
            other = "muon" if muon else "torch's, without nvcc to compile that one"
            raise UsageError(
                "--ds.enable_sleep with --ds.zero_stage 3: DeepSpeed can move only the states of its own Adam, and this run "
                f"has {other}: use --ds.zero_stage 2, or leave --ds.enable_sleep out"
            )
    if args.algo.advantage.is_correction_level == "auto":  # plain OpenRLHF keeps its own default
        rounds = args.ds.param_dtype != FLOAT32 and args.rpo.enable
        # Upstream's gspo (models/loss.py) then takes its ratio to the engine's log-probs, and rounding alone clips samples.
        args.algo.advantage.is_correction_level = "token" if rounds and args.actor.policy_loss_type != "gspo" else "off"


def _adapt_options_to_cpu(args: SimpleNamespace) -> None:
    """Replace options that have no CPU form where the result is the same. Raises UsageError for the others."""
    if args.ds.ring_attn_size > 1 or args.ds.tensor_parallel_size > 1:
        raise UsageError("--ds.ring_attn_size and --ds.tensor_parallel_size need a GPU: leave them out on a CPU host")
    if args.vllm.tensor_parallel_size > 1 or args.vllm.enable_sleep:
        raise UsageError("--vllm.tensor_parallel_size > 1 and --vllm.enable_sleep need a GPU: leave them out")
    if args.ds.param_dtype == "fp16":
        raise UsageError("--ds.param_dtype fp16 needs a GPU: leave it out, or use bf16")
    # On the many CPUs without bfloat16 instructions, a bfloat16 matrix product takes 13 times as long as in float32.
    if args.ds.param_dtype == "auto" or not args.rpo.enable:
        args.ds.param_dtype = FLOAT32
    if "flash_attention" in args.ds.attn_implementation:
        args.ds.attn_implementation = "sdpa"
    args.vllm.sync_backend = "gloo"
    args.vllm.enforce_eager = True
