"""The vLLM engine actor: OpenRLHF's, plus two calls that take a whole group as token ids."""

import asyncio
import math
from dataclasses import dataclass, replace

import ray
from vllm import RequestOutput, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.utils import random_uuid

from openrlhf_rpo.types import Rejected
from openrlhf_rpo.upstream import RolloutRayActor


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate: ``token_ids`` = prompt ids + prefix ids, at most ``max_tokens`` new ones.

    ``rejected`` is of the first new token; with it ``temperature`` and ``top_p`` are 1.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float = 1.0
    rejected: Rejected | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine sampled: ids as produced (end token included), their log-probs, "stop" or "length"."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A stored path to score: ``token_ids`` = prompt ids + path ids, of which the path's ``n_tokens`` are asked for."""

    token_ids: tuple[int, ...]
    n_tokens: int


def without_weight(token_id: int, log_prob: float, rejected: Rejected, processed: bool) -> float:
    """The policy's log-prob of a token that was drawn with ``rejected``'s weight, from the one that the engine reports.

    Reported are probabilities before the weight, or (``processed``) after it, normalized. vLLM 0.29 on a CPU adds the
    weight's logarithm to the token's own, so that one is not read.
    """
    if token_id == rejected.token_id:
        return rejected.log_prob
    total = -math.expm1(rejected.log_prob) + rejected.weight * math.exp(rejected.log_prob)
    return log_prob + math.log(total) if processed else log_prob


class _RPOEngine(RolloutRayActor):
    async def generate_group(self, requests: list[Request]) -> list[Generated]:
        """Generate all samples of a group; vLLM's prefix caching prefills what they share once."""
        return await asyncio.gather(*(self._generate_one(request) for request in requests))

    async def _generate_one(self, request: Request) -> Generated:
        if request.rejected is None:
            return await self._complete(request)
        first = await self._complete(replace(request, max_tokens=1))
        if first.finish_reason == "stop" or request.max_tokens == 1:
            return first
        token_ids, seed = (*request.token_ids, *first.token_ids), request.seed + 1  # not the same noise twice
        left = replace(request, token_ids=token_ids, max_tokens=request.max_tokens - 1, seed=seed, rejected=None)
        rest = await self._complete(left)
        return Generated(first.token_ids + rest.token_ids, first.log_probs + rest.log_probs, rest.finish_reason)

    async def _complete(self, request: Request) -> Generated:
        rejected = request.rejected
        params = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_tokens,
            min_tokens=0,  # a prefix may be complete but for its end token, which must be allowed to come first
            seed=request.seed,
            logprobs=0,  # the sampled token's own log-prob, nothing else
            logit_bias=None if rejected is None else {rejected.token_id: math.log(max(rejected.weight, 1e-40))},
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final = await self._final(request.token_ids, params)
        if final is None or not final.outputs:
            raise RuntimeError("the engine ended a request without any output")
        completion = final.outputs[0]
        log_probs = tuple(d[t].logprob for t, d in zip(completion.token_ids, completion.logprobs, strict=True))
        if rejected is not None:
            processed = self.llm.model_config.logprobs_mode.startswith("processed")
            log_probs = (without_weight(completion.token_ids[0], log_probs[0], rejected, processed),)
        return Generated(tuple(completion.token_ids), log_probs, completion.finish_reason)

    async def _final(self, token_ids: tuple[int, ...], params: SamplingParams) -> RequestOutput | None:
        """What the engine says of a request when it has ended; None when it says nothing."""
        final = None
        prompt = TokensPrompt(prompt_token_ids=list(token_ids))
        async for output in self.llm.generate(prompt, params, request_id=random_uuid()):
            final = output
        return final

    async def score_group(self, drafts: list[Draft]) -> list[tuple[float, ...]]:
        """The log-probs that the policy gives to the path tokens of each draft, at temperature 1."""
        return await asyncio.gather(*(self._score_one(draft) for draft in drafts))

    async def _score_one(self, draft: Draft) -> tuple[float, ...]:
        # An engine must generate something; one token, which nobody reads.
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        final = await self._final(draft.token_ids, params)
        if final is None or final.prompt_logprobs is None:
            raise RuntimeError("the engine ended a request without the log-probs of its tokens")
        first = len(draft.token_ids) - draft.n_tokens
        scored = zip(draft.token_ids[first:], final.prompt_logprobs[first:], strict=True)
        return tuple(log_probs[token].logprob for token, log_probs in scored)


RPOEngine = ray.remote(_RPOEngine)
