"""The places where OpenRLHF 0.11.2 takes CUDA for granted, each patched when its module is first imported.

Import hooks rather than imports, because a Ray worker must be ready before it knows which actor it will become, and
importing torch and openrlhf in each idle worker would cost seconds of every start.
"""

from typing import Any

import wrapt

from openrlhf_rpo.platform import weight_sync


def patch() -> None:
    """Register every patch; modules that are already loaded are patched at once."""
    for module, function in (
        ("torch.cuda", _no_cuda_device),
        ("ray.actor", _actors_ask_for_no_gpu),
        ("ray.util.placement_group", _bundles_ask_for_no_gpu),
        ("openrlhf.utils.deepspeed.deepspeed", _strategy_on_cpu),
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


def _strategy_on_cpu(module: Any) -> None:
    """The device mesh names "cuda", and the moving average of EMA moves to it."""
    init_device_mesh = module.init_device_mesh
    moving_average = module.DeepspeedStrategy.moving_average
    module.init_device_mesh = lambda device_type, *args, **kwargs: init_device_mesh("cpu", *args, **kwargs)
    module.DeepspeedStrategy.moving_average = lambda self, model, ema, beta=0.992, device="cpu": moving_average(
        self, model, ema, beta, "cpu"
    )
