"""Draw a drafted request's tokens with the same noise as without the draft.

vLLM draws a token as argmax p / e, with exponential noise e from the request's generator, one vector per token. With a draft
d_1 ... d_k one forward pass gives p at k + 1 positions. Their tokens are drawn from left to right with the same sampler and
generator until one differs from the draft; that one is kept, and the rest of the draft discarded. So a request takes one
noise vector per token that it keeps, and keeps what it would have drawn token by token: drafts change seconds, never
samples, except for the rounding of a forward pass over several tokens.

A draft token is accepted with its probability p, as often as by rejection sampling (arXiv 2211.17192); this is its coupled
form for drafts without a distribution. It replaces vLLM's ``RejectionSampler``, whose CPU kernels draw from a wrong
distribution (vLLM 0.29, issue 55005).
"""

from dataclasses import replace
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


class CoupledSampler(RejectionSampler):
    """A request with a logits processor, a penalty or banned words must have no draft, as in ``rollout/engine.py``."""

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: torch.Tensor | None,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        """The sampled tokens, [requests, longest draft + 1], padded with -1, and their log-probs if they are asked for.

        ``logits``: [draft tokens + requests, vocabulary], request by request. ``draft_probs`` are not used.
        """
        counts = torch.tensor(metadata.num_draft_tokens, device=logits.device)
        n, width = len(counts), metadata.max_spec_len + 1
        first = metadata.cu_num_sampled_tokens.long() - counts - 1  # the row of each request's first position
        before = metadata.cu_num_draft_tokens.long() - counts
        tokens = torch.full((n, width), PLACEHOLDER_TOKEN_ID, dtype=torch.int32, device=logits.device)
        found: list[tuple[torch.Tensor, LogprobsTensors | None]] = []
        going = torch.arange(n, device=logits.device)
        for t in range(width):
            drawn = self.sampler(logits[first[going] + t], _of(sampling_metadata, going) if t else sampling_metadata)
            tokens[going, t] = drawn.sampled_token_ids[:, 0]
            found.append((going * width + t, drawn.logprobs_tensors))
            going = going[counts[going] > t]
            going = going[tokens[going, t] == metadata.draft_token_ids[before[going] + t]]
            if not len(going):
                break
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=_put(found, n * width))


def _of(whole: SamplingMetadata, rows: torch.Tensor) -> SamplingMetadata:
    """The metadata of some requests, all with a draft."""
    numbers = rows.tolist()
    generators = {i: whole.generators[row] for i, row in enumerate(numbers) if row in whole.generators}
    temperature, top_p, top_k = (x if x is None else x[rows] for x in (whole.temperature, whole.top_p, whole.top_k))
    return replace(
        whole,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        generators=generators,
        no_penalties=True,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
        thinking_budget_state_holder=None,
    )


def _put(found: list[tuple[torch.Tensor, Any]], size: int) -> LogprobsTensors | None:
    """The log-probs of all draws in their places among ``size``, zeros elsewhere; None if they are not asked for."""
    if found[0][1] is None:
        return None
    parts = []
    for name in ("logprob_token_ids", "logprobs", "selected_token_ranks"):
        first = getattr(found[0][1], name)
        whole = first.new_zeros((size, *first.shape[1:]))
        for places, tensors in found:
            whole[places] = getattr(tensors, name)
        parts.append(whole)
    return LogprobsTensors(*parts)
