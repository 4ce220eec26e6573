"""Distribute groups of requests over all engines, least loaded first, and yield them as they finish."""

import bisect
import heapq
import math
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import ray

from openrlhf_rpo.rollout.requests import GeneratedGroup, GroupRequest, ScoreRequest


class Generator:
    """All engines of the run. ``sleeping`` (--vllm.enable_sleep): awake only inside the outermost ``with``."""

    def __init__(self, engines: Sequence[Any], sleeping: bool) -> None:
        self.engines = list(engines)
        self.sleeping = sleeping
        self.users = 0

    def __enter__(self) -> "Generator":
        if self.sleeping and not self.users:
            ray.get([engine.wake_up.remote() for engine in self.engines])
        self.users += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self.users -= 1
        if self.sleeping and not self.users:
            ray.get([engine.sleep.remote() for engine in self.engines])

    def generate(self, groups: Sequence[GroupRequest], enough: int | None = None) -> Iterator[tuple[int, GeneratedGroup]]:
        """Yield (group index, its samples) in the order in which groups finish.

        ``enough``: of all groups, that many with the shortest longest sample are wanted. Samples of others are stopped when
        they have as many tokens as the longest wanted one, or a few more; so what has a token of this length does not
        depend on which group happened to be done first.
        """
        if enough is None:
            yield from self._spread(groups, lambda engine, group: engine.generate_group.remote(group))
            return
        lengths: list[float] = []
        for index, generated in self._spread(groups, lambda engine, group: engine.generate_group.remote(group)):
            bisect.insort(lengths, generated.longest)
            if len(lengths) >= enough and generated.longest <= lengths[enough - 1] < math.inf:
                self._stop_at(max(1, lengths[enough - 1]))
            yield index, generated
        self._stop_at(math.inf)

    def _stop_at(self, n_tokens: float) -> None:
        ray.get([engine.stop_at.remote(n_tokens) for engine in self.engines])

    def score(self, groups: Sequence[list[ScoreRequest]]) -> Iterator[tuple[int, list[tuple[float, ...]]]]:
        """Yield (group index, log-probs of its paths' tokens) in the order in which groups finish."""
        return self._spread(groups, lambda engine, group: engine.score_group.remote(group))

    def _spread(self, groups: Sequence[Sized], call: Callable[[Any, list[Any]], Any]) -> Iterator[tuple[int, Any]]:
        pending = {call(engine, groups[i]): i for i, engine in self._assign(groups)}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            for ref in ready:
                yield pending.pop(ref), ray.get(ref)

    def _assign(self, groups: Sequence[Sized]) -> Iterator[tuple[int, Any]]:
        """Assign each group to the engine with the fewest unfinished samples."""
        unfinished = ray.get([engine.get_num_unfinished_requests.remote() for engine in self.engines])
        loads = [(load, i) for i, load in enumerate(unfinished)]
        heapq.heapify(loads)
        for index, requests in enumerate(groups):
            load, engine = heapq.heappop(loads)
            heapq.heappush(loads, (load + len(requests), engine))
            yield index, self.engines[engine]
