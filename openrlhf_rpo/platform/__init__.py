"""What a host without CUDA needs to run OpenRLHF's unmodified topology; on a GPU host nothing of this happens.

The driver decides the device once (``choose``) and hands it to every process through the environment
(``worker_env``); each process calls ``prepare`` before it imports torch's users: the driver by way of ``upstream``,
Ray workers by Ray's ``worker_process_setup_hook``.
"""

import os
import sys

DEVICE_ENV = "OPENRLHF_RPO_DEVICE"
SETUP_HOOK = "openrlhf_rpo.platform.prepare"

_prepared = False


def device() -> str:
    """ "cpu" or "cuda": what the driver chose, or what torch finds when nothing was chosen yet."""
    chosen = os.environ.get(DEVICE_ENV)
    if chosen:
        return chosen
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def choose(option: str, cluster_gpus: float) -> str:
    """Settle ``--rpo.device`` for this run: "auto" is CUDA when torch or the Ray cluster sees a GPU."""
    os.environ.pop(DEVICE_ENV, None)
    if option == "auto":
        option = "cuda" if cluster_gpus > 0 or device() == "cuda" else "cpu"
    os.environ[DEVICE_ENV] = option
    if option == "cpu":
        for name, value in CPU_ENV.items():
            os.environ.setdefault(name, value)
    return option


# Several processes share the cores, so each gets one thread; the KV cache of a CPU engine is small (GiB).
CPU_ENV = {
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker lives in the engine process: one start less, no copies between
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "CUDA_VISIBLE_DEVICES": "",
}


def worker_env() -> dict[str, str]:
    """Environment of every Ray worker, so that it comes to the same device as the driver."""
    names = [DEVICE_ENV, *(CPU_ENV if device() == "cpu" else ())]
    return {name: os.environ[name] for name in names if name in os.environ}


def prepare() -> None:
    """Make this process fit for the chosen device. Does nothing on CUDA; may be called any number of times."""
    global _prepared
    if _prepared or device() != "cpu":
        return
    _prepared = True
    from openrlhf_rpo.platform import cpu, flash_attn_stand_in

    flash_attn_stand_in.install(sys.modules)
    cpu.patch()
