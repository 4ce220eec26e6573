"""What every process of a run needs before it does anything: OpenRLHF adapted to hosts without a GPU or flash-attn, and the
guard against code that comes with models (``guard``).

The driver chooses the device once (``choose``) and passes it to every process through the environment (``worker_env``),
with the permission for models' code. Each process calls ``prepare`` before it imports anything that uses torch: the driver
through ``upstream``, Ray workers through Ray's ``worker_process_setup_hook``.
"""

import importlib.util
import os
import sys

from openrlhf_rpo.platform import flash_attn_stand_in, guard

DEVICE_ENV = "OPENRLHF_RPO_DEVICE"
SETUP_HOOK = "openrlhf_rpo.platform.prepare"

_prepared = False


def device() -> str:
    """ "cpu" or "cuda": what the driver chose or, before that, what torch finds."""
    chosen = os.environ.get(DEVICE_ENV)
    if chosen:
        return chosen
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def choose(option: str, cluster_gpus: float) -> str:
    """Resolve ``--rpo.device`` for this run: "auto" is CUDA if torch or the Ray cluster sees a GPU."""
    os.environ.pop(DEVICE_ENV, None)
    if option == "auto":
        option = "cuda" if cluster_gpus > 0 or device() == "cuda" else "cpu"
    os.environ[DEVICE_ENV] = option
    if option == "cpu":
        for name, value in CPU_ENV.items():
            os.environ.setdefault(name, value)
    return option


CPU_ENV = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",  # several processes share the cores
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the worker in the engine process: it starts faster, nothing is copied
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "CUDA_VISIBLE_DEVICES": "",
}


def worker_env() -> dict[str, str]:
    """The environment of Ray workers, so that they use the driver's device and run what it may run."""
    names = [DEVICE_ENV, *(CPU_ENV if device() == "cpu" else ())]
    found = {name: os.environ[name] for name in names if name in os.environ}
    found[guard.TRUST_ENV] = str(int(guard.allowed()))  # even if not: the cluster's own environment may say otherwise
    return found if imports_from_here() else found | {"PYTHONSAFEPATH": "1"}


def imports_from_here() -> bool:
    """Whether this process looks for modules in the current folder, as after ``python -m``."""
    here = os.path.realpath("")
    return any(os.path.realpath(folder) == here for folder in sys.path)


def prepare() -> None:
    """Guard this process, fix what is wrong upstream, and patch what its host lacks: a GPU, flash-attn, nvcc.

    Does nothing when called again.
    """
    guard.install()
    global _prepared
    if _prepared:
        return
    _prepared = True
    from openrlhf_rpo.platform import accumulation, cpu

    accumulation.install()
    if not has_flash_attn():
        flash_attn_stand_in.install()

    if device() == "cpu":
        cpu.patch()
    else:
        cpu.patch_without_nvcc()


def has_flash_attn() -> bool:
    """Whether flash-attn's kernels can run: it is installed, and the run uses GPUs."""
    return device() != "cpu" and importlib.util.find_spec("flash_attn") is not None
