"""The places where OpenRLHF 0.11.2 takes CUDA, or a host of its own, for granted, each patched at its module's first import.

Import hooks rather than imports, because a Ray worker must be ready before it knows which actor it will become, and
importing torch and openrlhf in each idle worker would cost seconds of every start.
"""

import contextlib
import random
import socket
from typing import Any

import wrapt

from openrlhf_rpo.platform import weight_sync

FLOAT32 = "fp32"


def patch() -> None:
    """Register every patch; modules that are already loaded are patched at once."""
    for module, function in (
        ("torch.cuda", _no_cuda_device),
        ("ray.actor", _actors_ask_for_no_gpu),
        ("ray.util.placement_group", _bundles_ask_for_no_gpu),
        ("openrlhf.utils.utils", _float32),
        ("deepspeed.comm.torch", _no_shared_memory_reduce),
        ("deepspeed.runtime.engine", _torch_adam),
        ("deepspeed.runtime.zero.partition_parameters", _gather_one_by_one),
        ("openrlhf.utils.deepspeed.deepspeed", _strategy_on_cpu),
        ("openrlhf.trainer.ray.launcher", _port_that_nobody_draws),
        ("openrlhf.trainer.ray.ppo_actor", weight_sync.patch_sender),
        ("openrlhf.trainer.ray.vllm_engine", weight_sync.patch_engine),
    ):
        wrapt.register_post_import_hook(function, module)


class _CpuDevice(str):
    """ "cpu" wherever a device is wanted; formatted, the index 0.

    ``NaiveReplayBuffer`` formats the current device into ``torch.device(f"cuda:{...}")``, which is never used.
    """

    def __format__(self, spec: str) -> str:
        return "0"


def _no_cuda_device(cuda: Any) -> None:
    """``torch.cuda.current_device`` and friends are called without asking whether CUDA exists."""
    cuda.current_device = lambda: _CpuDevice("cpu")
    cuda.current_stream = lambda *args, **kwargs: None
    cuda.synchronize = lambda *args, **kwargs: None
    cuda.empty_cache = lambda: None
    cuda.set_device = lambda device: None


def _actors_ask_for_no_gpu(actor: Any) -> None:
    """A CPU cluster has no GPU, and an actor that asks for one waits for ever."""
    options = actor.ActorClass.options

    def without_gpu(self: Any, **kwargs: Any) -> Any:
        return options(self, **{**kwargs, "num_gpus": 0})

    actor.ActorClass.options = without_gpu


def _bundles_ask_for_no_gpu(module: Any) -> None:
    placement_group = module.placement_group

    def without_gpu(bundles: list[dict[str, float]], *args: Any, **kwargs: Any) -> Any:
        bundles = [{k: v for k, v in bundle.items() if k != "GPU"} for bundle in bundles]
        return placement_group(bundles, *args, **kwargs)

    module.placement_group = without_gpu


def _float32(module: Any) -> None:
    """``--ds.param_dtype fp32``, which upstream has no word for; DeepSpeed's default is float32."""
    convert = module.convert_to_torch_dtype

    def with_float32(param_dtype: str) -> Any:
        import torch

        return torch.float32 if param_dtype == FLOAT32 else convert(param_dtype)

    module.convert_to_torch_dtype = with_float32


def _no_shared_memory_reduce(module: Any) -> None:
    """An operation for inference over several ranks, which every process group compiles: 25 s on a new machine."""
    module.build_shm_op = lambda: None


def _torch_adam(module: Any) -> None:
    """torch's AdamW computes what DeepSpeed's fused one does, which would be compiled: 50 s on a new machine."""
    configure = module.DeepSpeedEngine.get_optimizer_configuration

    def without_compiling(self: Any, parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not self.zero_use_cpu_optimizer():  # --ds.adam_offload has an optimizer of its own
            parameters.setdefault(module.TORCH_ADAM_PARAM, True)
        return configure(self, parameters, *args, **kwargs)

    module.DeepSpeedEngine.get_optimizer_configuration = without_compiling


def _gather_one_by_one(module: Any) -> None:
    """DeepSpeed before 0.19.8 gathers several parameters at once and waits for the last, which over gloo need not end last.

    A weight whose bias had come was still being written: its gather went over the checkpoint loaded into it meanwhile.
    """

    def gather(self: Any, parameters: list[Any], hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(parameters, hierarchy)

    module.Init._allgather_params_coalesced = gather


def _port_that_nobody_draws(module: Any) -> None:
    """DeepSpeed listens seconds after its port was chosen, and runs that share a host draw hundreds of ports meanwhile."""
    module.BaseDistributedActor._get_free_port = staticmethod(free_port)


def free_port(among: range = range(20_000, 32_768)) -> int:
    """A free port, by default between those of Ray's workers (to 19,999) and those that Linux gives out (from 32,768)."""
    for port in random.SystemRandom().sample(among, min(len(among), 100)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("", port))
            return port
    raise OSError(f"no free port was found between {among[0]} and {among[-1]}")


def _strategy_on_cpu(module: Any) -> None:
    """The device mesh names "cuda", and the moving average of EMA moves to it."""
    init_device_mesh = module.init_device_mesh
    moving_average = module.DeepspeedStrategy.moving_average
    module.init_device_mesh = lambda device_type, *args, **kwargs: init_device_mesh("cpu", *args, **kwargs)
    module.DeepspeedStrategy.moving_average = lambda self, model, ema, beta=0.992, device="cpu": moving_average(
        self, model, ema, beta, "cpu"
    )
