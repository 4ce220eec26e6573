"""Run OpenRLHF's unmodified topology without CUDA. Does nothing on a GPU host.

The driver chooses the device once (``choose``) and passes it to every process through the environment (``worker_env``). Each
process calls ``prepare`` before it imports anything that uses torch: the driver through ``upstream``, Ray workers through
Ray's ``worker_process_setup_hook``.
"""

import os
import sys

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
    """The environment of Ray workers, so that they use the driver's device."""
    names = [DEVICE_ENV, *(CPU_ENV if device() == "cpu" else ())]
    return {name: os.environ[name] for name in names if name in os.environ}


def prepare() -> None:
    """Patch this process for the CPU; does nothing on CUDA, or when called again."""
    global _prepared
    if _prepared or device() != "cpu":
        return
    _prepared = True
    from openrlhf_rpo.platform import cpu, flash_attn_stand_in

    flash_attn_stand_in.install(sys.modules)
    cpu.patch()
