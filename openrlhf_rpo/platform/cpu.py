"""Patches where OpenRLHF 0.11.2 assumes CUDA, its compiler, or a host of its own, each applied when its module is first
imported.

Import hooks, because a Ray worker is prepared before it knows which actor it will become, and importing torch and openrlhf
in every idle worker would slow each start by seconds.
"""

import contextlib
import os
import random
import socket
from typing import Any

import wrapt

from openrlhf_rpo.platform import weight_sync

FLOAT32 = "fp32"


def patch() -> None:
    """Register every patch; modules that are already imported are patched at once."""
    for module, function in (
        ("torch.cuda", _no_cuda_device),
        ("ray.actor", _actors_ask_for_no_gpu),
        ("ray.util.placement_group", _bundles_ask_for_no_gpu),
        ("openrlhf.utils.utils", _float32),
        ("deepspeed.comm.torch", _no_shared_memory_reduce),
        ("deepspeed.runtime.engine", _torch_adam),
        ("deepspeed.runtime.zero.partition_parameters", _gather_one_by_one),
        ("openrlhf.utils.deepspeed.deepspeed", _strategy_on_cpu),
        ("openrlhf.trainer.ray.launcher", _safe_port),
        ("openrlhf.trainer.ray.ppo_actor", weight_sync.patch_sender),
        ("openrlhf.trainer.ray.vllm_engine", weight_sync.patch_engine),
    ):
        wrapt.register_post_import_hook(function, module)


def patch_without_nvcc() -> None:
    """On a GPU host without CUDA's compiler: patch what needs it."""

    def optimizer(module: Any) -> None:
        if not has_nvcc():
            _torch_adam(module)

    wrapt.register_post_import_hook(optimizer, "deepspeed.runtime.engine")


def has_nvcc() -> bool:
    """Whether torch and DeepSpeed find CUDA's compiler on this host. Imports torch."""
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_HOME is not None and os.path.isfile(os.path.join(CUDA_HOME, "bin", "nvcc"))  # images that only run have none


class _CpuDevice(str):
    """ "cpu" as a device, but "0" when formatted: ``NaiveReplayBuffer`` makes an unused ``torch.device(f"cuda:{...}")``."""

    def __format__(self, spec: str) -> str:
        return "0"


def _no_cuda_device(cuda: Any) -> None:
    """Upstream calls ``torch.cuda.current_device`` and others without checking for CUDA."""
    cuda.current_device = lambda: _CpuDevice("cpu")
    cuda.current_stream = lambda *args, **kwargs: None
    cuda.synchronize = lambda *args, **kwargs: None
    cuda.empty_cache = lambda: None
    cuda.set_device = lambda device: None


def _actors_ask_for_no_gpu(actor: Any) -> None:
    """Without GPUs in the cluster, an actor that requests one would wait forever."""
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
    """Add ``--ds.param_dtype fp32``, which upstream does not accept; DeepSpeed's default is float32."""
    convert = module.convert_to_torch_dtype

    def with_float32(param_dtype: str) -> Any:
        import torch

        return torch.float32 if param_dtype == FLOAT32 else convert(param_dtype)

    module.convert_to_torch_dtype = with_float32


def _no_shared_memory_reduce(module: Any) -> None:
    """Skip an inference-only operation that every process group would compile (25 s on a new machine)."""
    module.build_shm_op = lambda: None


def _torch_adam(module: Any) -> None:
    """Use torch's fused AdamW instead of DeepSpeed's, which is compiled (on a CPU 50 s on a new machine)."""
    configure = module.DeepSpeedEngine.get_optimizer_configuration

    def without_compiling(self: Any, parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.zero_use_cpu_optimizer():  # --ds.adam_offload has its own optimizer
            return configure(self, parameters, *args, **kwargs)
        parameters.setdefault(module.TORCH_ADAM_PARAM, True)
        adam, _ = configure(self, parameters, *args, **kwargs)
        return adam, {"fused": True}

    module.DeepSpeedEngine.get_optimizer_configuration = without_compiling


def _gather_one_by_one(module: Any) -> None:
    """DeepSpeed before 0.19.8 gathers several parameters at once and waits only for the last, but gloo may finish it first.

    A late gather could then overwrite a checkpoint loaded into its parameter meanwhile.
    """

    def gather(self: Any, parameters: list[Any], hierarchy: int = 0, quantize: bool = False) -> None:
        self._allgather_params_sequential(parameters, hierarchy)

    module.Init._allgather_params_coalesced = gather


def _safe_port(module: Any) -> None:
    """DeepSpeed listens seconds after its port is chosen; meanwhile other runs on the host could take a random port."""
    module.BaseDistributedActor._get_free_port = staticmethod(free_port)


def free_port(among: range = range(20_000, 32_768)) -> int:
    """A free port, by default between Ray's worker ports (up to 19,999) and Linux's ephemeral ones (from 32,768)."""
    for port in random.SystemRandom().sample(among, min(len(among), 100)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("", port))
            return port
    raise OSError(f"no free port was found between {among[0]} and {among[-1]}")


def _strategy_on_cpu(module: Any) -> None:
    """The device mesh and the moving average (EMA) are hard-coded to "cuda"."""
    init_device_mesh = module.init_device_mesh
    moving_average = module.DeepspeedStrategy.moving_average
    module.init_device_mesh = lambda device_type, *args, **kwargs: init_device_mesh("cpu", *args, **kwargs)
    module.DeepspeedStrategy.moving_average = lambda self, model, ema, beta=0.992, device="cpu": moving_average(
        self, model, ema, beta, "cpu"
    )
