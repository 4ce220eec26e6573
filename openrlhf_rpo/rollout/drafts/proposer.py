"""An engine's drafts: what the stored paths of a request's question say next.

vLLM makes a ``Proposer`` in each worker and asks it for drafts after every forward pass. The engine hands over a group's
paths before its requests and withdraws them after the last one (``speculation``). Needs vLLM's model runner V1.
"""

import copy
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import vllm.v1.worker.gpu_model_runner as runner_module
from vllm.config import VllmConfig

from openrlhf_rpo.rollout.drafts.index import PathIndex
from openrlhf_rpo.rollout.drafts.pace import Pace, abreast
from openrlhf_rpo.rollout.drafts.sampler import CoupledSampler
from openrlhf_rpo.rollout.drafts.speculation import GROUP

LOGITS = 2**30
"""Bytes of float32 logits that a pass may spend on drafted tokens, or the row a request that vLLM's profile sets aside. 15
tokens of each of 1,024 requests, with a vocabulary of 152,000, would take nine times as much."""


@dataclass
class _Group:
    """The paths of a group, and its counts in tokens."""

    paths: PathIndex
    drafted: int = 0
    accepted: int = 0


class Proposer:
    """Made before vLLM's model runner makes its sampler and logits processors, so that it can replace both."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.most = vllm_config.speculative_config.num_speculative_tokens
        vocabulary = vllm_config.model_config.get_vocab_size()
        self.rows = max(vllm_config.scheduler_config.max_num_seqs, LOGITS // (4 * vocabulary))
        """Tokens that may be drafted in a pass, all requests together."""
        self.max_len = vllm_config.model_config.max_model_len
        self.runner: Any = None
        self.groups: dict[str, _Group] = {}
        self.last: dict[str, tuple[_Group, int]] = {}
        """For each request with a draft in the last pass: its group and the draft's length."""
        self.saved = 0.0
        """Seconds saved by drafts, not yet reported; 0 where passes without drafts are not timed."""
        runner_module.RejectionSampler = CoupledSampler
        runner_module.build_logitsprocs = _with_logit_bias(runner_module.build_logitsprocs)
        # Near the longest input of a drafter with a model, vLLM would give every request a draft of zeros.
        runner_module.GPUModelRunner._input_fits_in_drafter = lambda runner, metadata: True

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Called by vLLM; there is no model."""

    def remember(self, runner: Any, group: str, paths: Sequence[bytes]) -> None:
        self.runner = runner
        self.groups[group] = _Group(PathIndex([np.frombuffer(path, np.int32) for path in paths]))

    def forget(self, name: str) -> dict[str, float]:
        group, saved, self.saved = self.groups.pop(name), self.saved, 0.0
        return {"drafted": group.drafted, "accepted": group.accepted, "saved": saved}

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """A draft for each request of the batch, empty where its paths say nothing.

        ``sampled_token_ids``: each request's new tokens; ``token_ids_cpu``: [requests, longest], all its tokens, of which
        the first ``num_tokens_no_spec`` count.
        """
        if self.groups:
            self._count(sampled_token_ids)
        if not self.groups or not self.pays(sampled_token_ids):
            return [[] for _ in sampled_token_ids]
        most = min(self.most, self.rows // len(sampled_token_ids))
        return [
            self._draft(row, token_ids_cpu[row, : num_tokens_no_spec[row]], most) if sampled else []
            for row, sampled in enumerate(sampled_token_ids)
        ]

    def pays(self, sampled_token_ids: list[list[int]]) -> bool:
        """Whether the next pass should have drafts."""
        return True

    def _count(self, sampled_token_ids: list[list[int]]) -> None:
        """Count the last pass's accepted tokens."""
        given = dict(zip(self.runner.input_batch.req_ids, sampled_token_ids, strict=True)) if self.last else {}
        for request, (group, drafted) in self.last.items():
            if sampled := given.get(request):
                group.accepted += min(len(sampled) - 1, drafted)
        self.last = {}

    def _draft(self, row: int, tokens: np.ndarray, most: int) -> list[int]:
        request = self.runner.input_batch.req_ids[row]
        asked = (self.runner.requests[request].sampling_params.extra_args or {}).get(GROUP)
        if asked is None:
            return []
        name, start = asked
        group = self.groups[name]
        draft = group.paths.after(tokens[start:], min(most, self.max_len - 1 - len(tokens)))
        if draft:
            group.drafted += len(draft)
            self.last[request] = group, len(draft)
        return draft


class ThriftyProposer(Proposer):
    """Drafts only where they pay (``pace``)."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        super().__init__(vllm_config)
        self.pace = Pace()
        self.at_once = vllm_config.scheduler_config.max_num_seqs
        self.drafting = self.drafted = True
        """Whether the pass that runs has drafts, and whether the one before it had."""
        self.requests: set[str] = set()
        """Requests that the last pass gave a token; one still in its prompt gets none."""
        self.began = 0.0
        self.spent, self.lengths = 0.0, Counter[str]()
        """Seconds of timed passes since the engine was idle, and the tokens they gave each request."""

    def forget(self, name: str) -> dict[str, float]:
        if len(self.groups) == 1:
            new = np.array(list(self.lengths.values()))
            plain = self.pace.plain_seconds(abreast(new, np.zeros(len(new)), self.at_once)[0])
            self.saved += 0.0 if plain is None else plain - self.spent
            self.spent, self.lengths = 0.0, Counter()
        return super().forget(name)

    def pays(self, sampled_token_ids: list[list[int]]) -> bool:
        now = time.perf_counter()
        given = dict(zip(self.runner.input_batch.req_ids, map(len, sampled_token_ids), strict=True))
        if self.requests.issuperset(given):  # no prompt was read, nothing was waited for
            self.spent += now - self.began
            self.lengths.update(given)
            if self.drafting == self.drafted:  # the time includes handing out the last pass's tokens
                self.pace.add(len(self.requests), self.drafting, sum(given.values()), now - self.began)
        self.requests = {request for request, n_tokens in given.items() if n_tokens}
        self.began, self.drafted = now, self.drafting
        self.drafting = self.pace.pays(len(given))
        return self.drafting


def _with_logit_bias(build: Any) -> Any:
    """With drafts vLLM builds no processor of ``logit_bias``, which verified reuse needs for its residual."""

    def build_all(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
        config = copy.copy(vllm_config)
        config.speculative_config = None
        return build(config, *args, **kwargs)

    return build_all
