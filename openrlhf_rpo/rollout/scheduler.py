"""vLLM's scheduler, able to take the head of a text from the prefix cache when log-probs of its end are wanted.

vLLM 0.29 reads a text whole when it is asked for log-probs, because cached tokens have none. Without a bound the cache would
also serve tokens whose log-probs are wanted, such as those just drawn; so the first of them is the bound.
"""

from typing import Any

SCHEDULER = f"{__name__}.scheduler"
"""The engine's ``scheduler_cls``."""
HEAD = "openrlhf_rpo_head"
"""In a request's ``extra_args``: how many of its first tokens may come from the cache."""


def scheduler(vllm_config: Any, **others: Any) -> Any:
    """vLLM's own scheduler for this configuration, with the bound."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    kind = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    made = kind(vllm_config=vllm_config, **others)
    manager = made.kv_cache_manager
    computed = manager.get_computed_blocks
    manager.get_computed_blocks = lambda request: computed(_bounded(request))
    return made


def _bounded(request: Any) -> Any:
    head = ((request.sampling_params and request.sampling_params.extra_args) or {}).get(HEAD)
    return request if head is None else _Head(request, head)


class _Head:
    """A request, ``num_tokens`` long for the cache, which serves all but the last."""

    def __init__(self, request: Any, n_tokens: int) -> None:
        self.request = request
        self.num_tokens = n_tokens + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request, name)
