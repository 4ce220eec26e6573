"""Weight sync from DeepSpeed to the vLLM engines on CPU: one gloo broadcast of all parameters, then one reload.

Upstream (``openrlhf/trainer/ray/ppo_actor.py``, ``vllm_worker_wrap.py``) uses NCCL and loads one parameter at a time. vLLM's
CPU linear layers pack their weights after loading and drop the loader, so the whole model is reloaded from one iterator
(``engine_worker``).
"""

import os
import socket
from typing import Any

from openrlhf_rpo.platform.ray_class import unwrap

EXTENSION = "openrlhf_rpo.platform.engine_worker.CpuWorkerExtension"


def gloo_group(host: str, port: int, rank: int, world_size: int, server: socket.socket | None = None) -> Any:
    """``server``: rank 0's listening socket, taken over by the group, so that no one else can take the port."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group

    return stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo", listen_socket=server)


def from_rank_0() -> Any:
    """torch's options of a broadcast from the policy's process."""
    import torch.distributed as dist

    options = dist.BroadcastOptions()
    options.rootRank = 0
    return options


def patch_engine(module: Any) -> None:
    """Give ``RolloutRayActor`` our worker extension, dtype, a KV block size for CPU attention, and ``receive_weights``."""
    engine = unwrap(module.RolloutRayActor)
    start = engine.__init__

    async def on_cpu(self: Any, *args: Any, **kwargs: Any) -> None:
        dtype = getattr(self, "dtype", None) or "float32"
        kwargs |= {"worker_extension_cls": EXTENSION, "block_size": 32, "dtype": dtype}
        # Chunked prefill rewinds the request's seeded generator, which a CPU generator does not support.
        tokens = getattr(self, "limits", {}).get("max_num_batched_tokens", 8192)
        kwargs |= {"enable_chunked_prefill": False, "long_prefill_token_threshold": 0}
        kwargs |= {"max_num_batched_tokens": max(tokens, kwargs.get("max_model_len") or 0)}
        kwargs.pop("gpu_memory_utilization", None)
        if kwargs.get("enforce_eager"):
            os.environ["TORCHDYNAMO_DISABLE"] = "1"  # else vLLM compiles token ranks, which nobody reads: 3 seconds
        await start(self, *args, **kwargs)

    async def receive_weights(self: Any, layout: list[tuple[str, str, list[int]]]) -> None:
        await self.llm.collective_rpc("receive_weights", args=(layout,))

    # Ray copies the methods into its own class, and our actors inherit from the one underneath, so both are patched.
    for cls in (engine, module.RolloutRayActor.__ray_metadata__.modified_class):
        cls.__init__ = on_cpu
        cls.receive_weights = receive_weights


def patch_sender(module: Any) -> None:
    """Make ``ActorPPOTrainer`` join the gloo group and broadcast all weights at once."""
    module.ActorPPOTrainer._init_vllm_sync_group = _init_vllm_sync_group
    module.ActorPPOTrainer.broadcast_to_vllm = _broadcast_to_vllm


def _init_vllm_sync_group(self: Any, backend: str) -> None:
    """Rank 0 of DeepSpeed is rank 0 of the group; engine i is rank i + 1 (tensor parallelism is 1 on CPU)."""
    import ray

    # An engine that could not start raises here, before joining a group with it would time out.
    ray.get([engine.get_num_unfinished_requests.remote() for engine in self.vllm_engines])
    server = socket.create_server(("", 0))
    host, port = ray.util.get_node_ip_address(), server.getsockname()[1]
    world_size = len(self.vllm_engines) + 1
    joining = [
        engine.init_process_group.remote(host, port, i + 1, world_size, "openrlhf_rpo", "gloo", False)
        for i, engine in enumerate(self.vllm_engines)
    ]
    self._model_update_group = gloo_group(host, port, 0, world_size, server)
    ray.get(joining)


def _broadcast_to_vllm(self: Any) -> None:
    """Send all parameters in one message (gathered first under ZeRO-3), and reset the engines' prefix caches."""
    import deepspeed
    import ray
    import torch

    model = self.actor.model.module
    names, parameters = zip(*model.named_parameters(), strict=True)
    with deepspeed.zero.GatheredParameters(list(parameters), enabled=self.strategy.args.ds.zero_stage == 3):
        if torch.distributed.get_rank() == 0:
            dtype = str(parameters[0].dtype).removeprefix("torch.")
            layout = [(n, dtype, list(p.shape)) for n, p in zip(names, parameters, strict=True)]
            loading = [engine.receive_weights.remote(layout) for engine in self.vllm_engines]
            flat = torch.cat([p.data.flatten() for p in parameters])
            try:
                self._model_update_group.broadcast([flat], from_rank_0()).wait()
            except RuntimeError:  # gloo reports only a broken connection; the engine says why
                ray.get(ray.wait(loading, timeout=30)[0])
                raise
            ray.get(loading)
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
    torch.distributed.barrier()
