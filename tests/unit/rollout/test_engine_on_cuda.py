"""What vLLM would be started with on a node of H100s: its own configuration, on a platform that only says it is CUDA."""

import json
import os
import subprocess
import sys

import pytest

from lab.testbed import model_dir

PROGRAM = """
import asyncio, json, sys
from types import ModuleType, SimpleNamespace

sys.modules["vllm._C_stable_libtorch"] = ModuleType("CUDA's kernels, which vLLM for CPUs does not have")
import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability


class H100(NonNvmlCudaPlatform):
    get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
    get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100 80GB HBM3")
    get_device_total_memory = classmethod(lambda cls, device_id=0: 80 * 2**30)
    device_count = classmethod(lambda cls: 8)

    def is_cumem_allocator_available(self):
        return True


vllm.platforms.current_platform = H100()
import vllm.config.vllm

vllm.config.vllm.HAS_TRITON = True
from openrlhf_rpo.rollout import engine
from openrlhf_rpo.rollout.engine import _RPOEngine, engine_for

engine.READ_AT_ONCE = 512  # less than the longest path

model, changes = json.loads(sys.argv[1])
started = []
vllm.AsyncLLMEngine.from_engine_args = lambda engine_args: started.append(engine_args) or Engine()


class Engine:
    async def is_sleeping(self):
        return False


def started_with(drafts, tensor_parallel_size, sleep, limits, weights, trains):
    rpo = SimpleNamespace(drafts=SimpleNamespace(mode=drafts, tokens=4), tail=1.0, engine_limits=limits)
    cls = engine_for(rpo, weights, trains).__ray_metadata__.modified_class
    upstream = {  # openrlhf.trainer.ray.vllm_engine.create_vllm_engines, 0.11.2
        "model": model,
        "enforce_eager": False,
        "worker_extension_cls": "openrlhf.trainer.ray.vllm_worker_wrap.WorkerWrap",
        "tensor_parallel_size": tensor_parallel_size,
        "seed": 42,
        "distributed_executor_backend": "uni" if tensor_parallel_size == 1 else "ray",
        "max_model_len": 640,
        "enable_prefix_caching": True,
        "dtype": "bfloat16",
        "trust_remote_code": False,
        "full_determinism": False,
        "gpu_memory_utilization": 0.5,
        "bundle_indices": None,
        "num_gpus": 0.2,
        "enable_sleep_mode": sleep,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 1,
    }
    asyncio.run(cls.__init__(object.__new__(cls), **upstream))
    return started[-1].create_engine_config()


found = []
for case in changes:
    config = started_with(**case)
    speculation = config.speculative_config
    found.append({
        "device": config.device_config.device_type,
        "dtype": str(config.model_config.dtype),
        "sequences": config.scheduler_config.max_num_seqs,
        "tokens": config.scheduler_config.max_num_batched_tokens,
        "executor": config.parallel_config.distributed_executor_backend,
        "worker": config.parallel_config.worker_cls,
        "prefixes": config.cache_config.enable_prefix_caching,
        "sleeps": config.model_config.enable_sleep_mode,
        "second_runner": config.use_v2_model_runner,
        "policy": config.scheduler_config.policy,
        "of_a_prompt": config.scheduler_config.long_prefill_token_threshold,
        "scheduled_ahead": config.scheduler_config.async_scheduling,
        "speculation": speculation and [speculation.method, speculation.num_speculative_tokens],
    })
print(json.dumps(found))
"""
H100 = {
    "device": "cuda",
    "dtype": "torch.bfloat16",
    "sequences": 1024,
    "tokens": 16384,
    "executor": "uni",
    "worker": "vllm.v1.worker.gpu_worker.Worker",
    "prefixes": True,
    "sleeps": True,
    "second_runner": True,
    "policy": "priority",
    "of_a_prompt": 0,
    "scheduled_ahead": True,
    "speculation": None,
}


CASES = {
    "as it is": ({}, {}),
    "two GPUs": ({"tensor_parallel_size": 2, "sleep": False}, {"executor": "ray", "sleeps": False}),
    "fp16": ({"weights": "fp16"}, {"dtype": "torch.float16"}),
    "sequences": ({"limits": "256"}, {"sequences": 256}),
    "sequences and tokens": ({"limits": "256,4096"}, {"sequences": 256, "tokens": 4096}),
    "fp16, to evaluate": ({"weights": "fp16", "limits": "64", "trains": False}, {"dtype": "torch.float16", "sequences": 64}),
    "drafts, to evaluate": ({"drafts": "on", "trains": False}, {}),
    "drafts": (
        {"drafts": "auto"},
        {"second_runner": False, "scheduled_ahead": False, "speculation": ["custom_class", 4], "of_a_prompt": 512},
    ),
}


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> dict[str, dict[str, object]]:
    """Name of a case -> what vLLM said of its configuration; one process for all, which imports vLLM once.

    Another one first gives vLLM's cache what it must know of the model's class, which cannot be imported on the pretended
    platform.
    """
    environment = os.environ | {"VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("vllm"))}
    program = "from vllm import ModelRegistry as r; assert r._try_inspect_model_cls('Qwen2ForCausalLM')"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
    usual = {"drafts": "off", "tensor_parallel_size": 1, "sleep": True, "limits": None, "weights": "bf16", "trains": True}
    asked = [str(model_dir("main")), [usual | changes for changes, _ in CASES.values()]]
    environment |= {"OPENRLHF_RPO_DEVICE": "cuda", "RAY_ADDRESS": "none", "CUDA_VISIBLE_DEVICES": "0,1"}
    words = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_on_h100s_vllm_is_started_with(started, name):
    assert started[name] == H100 | CASES[name][1]
