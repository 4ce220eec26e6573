"""The drafts of an engine: what the stored paths of a request's question say next.

vLLM makes a ``Proposer`` in each worker and asks it for drafts after every forward pass. The engine hands over the paths of
a group before its requests and takes them back behind the last one (``speculation``). Needs vLLM's model runner V1.
"""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import vllm.v1.worker.gpu_model_runner as runner_module
from vllm.config import VllmConfig

from openrlhf_rpo.rollout.drafts.index import PathIndex
from openrlhf_rpo.rollout.drafts.pace import Pace
from openrlhf_rpo.rollout.drafts.sampler import CoupledSampler
from openrlhf_rpo.rollout.drafts.speculation import GROUP


@dataclass
class _Group:
    """The paths of a group, its counts in tokens, and the length of each request's last draft."""

    paths: PathIndex
    drafted: int = 0
    accepted: int = 0
    last: dict[str, int] = field(default_factory=dict)


class Proposer:
    """Made before vLLM makes the sampler and the logits processors of its model runner, both of which it replaces."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.most = vllm_config.speculative_config.num_speculative_tokens
        self.max_len = vllm_config.model_config.max_model_len
        self.runner: Any = None
        self.groups: dict[str, _Group] = {}
        self.drafting = True
        runner_module.RejectionSampler = CoupledSampler
        runner_module.build_logitsprocs = _with_logit_bias(runner_module.build_logitsprocs)

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Called by vLLM; there is no model."""

    def remember(self, runner: Any, group: str, paths: Sequence[bytes]) -> None:
        self.runner = runner
        self.groups[group] = _Group(PathIndex([np.frombuffer(path, np.int32) for path in paths]))

    def forget(self, name: str) -> tuple[int, int, float]:
        """How many tokens were drafted for the group, and how many accepted; seconds saved since the last call."""
        group = self.groups.pop(name)
        return group.drafted, group.accepted, self.saved()

    def saved(self) -> float:
        """Seconds that drafts saved since the last call: 0, because nothing is timed without them."""
        return 0.0

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """A draft for each request of the batch, empty where its paths say nothing.

        ``sampled_token_ids``: what each request has just been given; ``token_ids_cpu``: [requests, longest], all its tokens,
        of which ``num_tokens_no_spec`` count.
        """
        if not self.groups:
            return [[] for _ in sampled_token_ids]
        return [
            self._draft(row, len(sampled), token_ids_cpu[row, : num_tokens_no_spec[row]]) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def _draft(self, row: int, n_sampled: int, tokens: np.ndarray) -> list[int]:
        request = self.runner.input_batch.req_ids[row]
        asked = (self.runner.requests[request].sampling_params.extra_args or {}).get(GROUP)
        if asked is None:
            return []
        name, start = asked
        group = self.groups[name]
        group.accepted += min(n_sampled - 1, group.last.pop(request, 0))
        if not self.drafting:
            return []
        draft = group.paths.after(tokens[start:], min(self.most, self.max_len - 1 - len(tokens)))
        group.drafted += len(draft)
        group.last[request] = len(draft)
        return draft


class ThriftyProposer(Proposer):
    """Drafts only where they pay (``pace``)."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(vllm_config)
        self.pace = Pace()
        self.requests: set[str] = set()
        self.began = 0.0

    def saved(self) -> float:
        seconds, self.pace.saved = self.pace.saved, 0.0
        return seconds

    def propose(self, sampled_token_ids: list[list[int]], *tokens: Any, **others: object) -> list[list[int]]:
        if not self.groups:
            return [[] for _ in sampled_token_ids]
        now, seen = time.perf_counter(), set(self.runner.input_batch.req_ids)
        if seen <= self.requests:  # no prompt was read, nothing was waited for
            self.pace.add(len(self.requests), self.drafting, sum(map(len, sampled_token_ids)), now - self.began)
        before, self.drafting = self.drafting, self.pace.pays(len(seen))
        self.requests, self.began = seen, now
        if not (before or self.drafting):  # nothing to count, nothing to draft
            return [[] for _ in sampled_token_ids]
        return super().propose(sampled_token_ids, *tokens, **others)


def _with_logit_bias(build: Any) -> Any:
    """vLLM builds no processor of ``logit_bias`` where there are drafts, but verified reuse needs it for its residual."""

    def build_all(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
        config = copy.copy(vllm_config)
        config.speculative_config = None
        return build(config, *args, **kwargs)

    return build_all
