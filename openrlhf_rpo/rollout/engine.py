"""The vLLM engine actor: OpenRLHF's, plus calls that generate or score a whole group of token ids."""

import asyncio
import gc
import math
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar

import ray
from vllm import AsyncEngineArgs, RequestOutput, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.logprobs import FlatLogprobs
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.utils import random_uuid

from openrlhf_rpo.config import limits_of
from openrlhf_rpo.platform.cpu import FLOAT32
from openrlhf_rpo.rollout.drafts.speculation import GROUP, allow_logit_bias, forget, remember, speculative_config
from openrlhf_rpo.rollout.requests import Generated, GeneratedGroup, GroupRequest, Request, ScoreRequest, rounding
from openrlhf_rpo.rollout.scheduler import HEAD, SCHEDULER
from openrlhf_rpo.types import LogProbs, Rejected, TokenIds, as_ids, as_log_probs
from openrlhf_rpo.upstream import RolloutRayActor

DTYPES = {FLOAT32: "float32", "bf16": "bfloat16", "fp16": "float16"}
"""``--ds.param_dtype`` -> vLLM's ``dtype``."""
STREAMED = 16
"""Tokens between two checks whether a sample must stop. Each check takes as much time as a token."""
FROM_HERE, GENERATE, SCORE = range(3)
"""vLLM's priorities, the first served first: a text continues what the engine has just computed, and a group its scored
paths, before waiting requests evict them from the prefix cache."""
READ_AT_ONCE = 1024
"""Prompt tokens in a pass of an engine with drafts: for log-probs, vLLM's model runner V1 holds the float32 logits of all of
them at once, in memory that it did not set aside."""
_ABORTED = "abort"
"""vLLM's finish reason of a request that was ended from outside."""


def without_weight(token_id: int, log_prob: float, rejected: Rejected) -> float:
    """The policy's log-prob of a token that was drawn with ``rejected`` weighted, from the engine's ``log_prob``.

    The engine reports it with the weight applied, normalized. For the rejected token itself vLLM 0.29 on CPU reports the
    weighted value, so its known log-prob is returned.
    """
    if token_id == rejected.token_id:
        return rejected.log_prob
    return log_prob + math.log(-math.expm1(rejected.log_prob) + rejected.weight * math.exp(rejected.log_prob))


def log_probs_of(token_ids: Sequence[int], found: FlatLogprobs) -> list[float]:
    """The log-probs of ``token_ids``, reported by the engine one per position.

    Flat, because vLLM otherwise keeps a dictionary and an object per token until a sample ends. Raises RuntimeError if they
    are of other tokens.
    """
    if found.token_ids != list(token_ids):
        raise RuntimeError("the engine's log-probs are not those of its tokens")
    return found.logprobs


def offline_limits(longest: int, world_size: int) -> dict[str, int]:
    """Sequences at a time and tokens a pass, as vLLM sets them for offline work on this hardware.

    For an async engine vLLM takes the smallest, 128 and 2,048: 512 samples would run in four waves. ``longest``: tokens of a
    sequence, all in one pass for models that cannot read a prompt in parts.
    """
    tokens, sequences = AsyncEngineArgs.get_batch_defaults(world_size)
    offline = UsageContext.LLM_CLASS
    return {"max_num_seqs": sequences[offline], "max_num_batched_tokens": max(tokens[offline], longest)}


class _RPOEngine(RolloutRayActor):
    speculation: ClassVar[Mapping[str, object] | None] = None
    """vLLM's ``speculative_config``; None: the engine takes no drafts."""
    stops: ClassVar[bool] = False
    """Whether ``stop_at`` may be called: samples then come in parts, whose lengths are known."""
    dtype: ClassVar[str | None] = None
    """vLLM's ``dtype``, that of the trainer's weights; None: bfloat16 as upstream's, float32 on a CPU."""
    limits: ClassVar[Mapping[str, int]] = {}
    """vLLM's arguments of ``--rpo.engine_limits``."""
    most: float = math.inf
    """The number of tokens at which a sample is stopped."""
    stopped: bool = False
    """Whether samples are returned as they are, and none is begun."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.longest = kwargs["max_model_len"]
        self.running = set[str]()  # samples that may be stopped
        kwargs |= {"scheduler_cls": SCHEDULER, "scheduling_policy": "priority"}
        kwargs = offline_limits(kwargs["max_model_len"], kwargs["tensor_parallel_size"]) | dict(self.limits) | kwargs
        if self.dtype:
            kwargs["dtype"] = self.dtype
        if self.speculation:
            kwargs["speculative_config"] = self.speculation
            kwargs["long_prefill_token_threshold"] = min(READ_AT_ONCE, self.longest)
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # version 2 cannot use our proposer
            allow_logit_bias(SamplingParams)
        await super().__init__(*args, **kwargs)
        gc.collect()
        gc.freeze()  # as vLLM's server does: otherwise frequent collections walk all that was imported

    async def stop_at(self, n_tokens: float) -> None:
        """Stop every sample, running or to come, at ``n_tokens`` new tokens or more."""
        self.most = n_tokens

    async def stop(self) -> None:
        """Return every sample with the tokens that it has, and begin none until ``go_on``."""
        self.stopped = True
        while self.running:  # vLLM knows a request only some time after it is made
            await self.llm.abort(list(self.running))
            await asyncio.sleep(0.005)

    async def go_on(self) -> None:
        self.stopped = False

    async def reset_prefix_cache(self) -> None:
        """Drop keys and values of former weights, once samples just stopped are gone. Raises RuntimeError if it cannot."""
        for _ in range(500):
            if await self.llm.reset_prefix_cache():
                return
            await asyncio.sleep(0.02)
        raise RuntimeError("the engine cannot drop its prefix cache: something is still running")

    async def generate_group(self, group: GroupRequest) -> GeneratedGroup:
        """Generate all samples of a group; vLLM's prefix cache prefills their shared tokens once."""
        if not (self.speculation and group.drafts):
            return await self._generate_all(group)
        name = random_uuid()
        await self.llm.collective_rpc(remember, args=(name, group.drafts))
        generated = await self._generate_all(group, {GROUP: [name, group.prompt_length]})
        drafted = await self.llm.collective_rpc(forget, args=(name,))
        return replace(generated, counts={**generated.counts, **drafted[0]})  # workers of one engine draft alike

    async def _generate_all(self, group: GroupRequest, drafts: dict[str, Any] | None = None) -> GeneratedGroup:
        async def one(request: Request) -> tuple[Generated, Generated]:
            drawn = await self._generate_one(request, drafts)
            return drawn, await self._read(request, drawn) if group.read else drawn

        both = await asyncio.gather(*map(one, group.samples))
        return GeneratedGroup([read for _, read in both], rounding(both) if group.read else {})

    async def _read(self, request: Request, drawn: Generated) -> Generated:
        """The sample with its new tokens' log-probs as the engine reads them.

        A text that fills the engine is one token longer than it reads: the last keeps its own log-prob.
        """
        text = (request.token_ids + drawn.token_ids)[: self.longest - 1]
        n = len(text) - len(request.token_ids)
        read = await self._score_one(ScoreRequest(text, n), FROM_HERE) if n else as_log_probs()
        return replace(drawn, log_probs=read + drawn.log_probs[n:])

    async def _generate_one(self, request: Request, drafts: dict[str, Any] | None) -> Generated:
        if request.rejected is None:
            return await self._complete(request, drafts)
        first = await self._complete(replace(request, max_tokens=1), None)
        if first.finish_reason != "length" or request.max_tokens == 1:
            return first
        token_ids, seed = request.token_ids + first.token_ids, request.seed + 1  # do not reuse the first token's noise
        left = replace(request, token_ids=token_ids, max_tokens=request.max_tokens - 1, seed=seed, rejected=None)
        rest = await self._complete(left, drafts, n_before=1)
        return Generated(first.token_ids + rest.token_ids, first.log_probs + rest.log_probs, rest.finish_reason)

    async def _complete(self, request: Request, drafts: dict[str, Any] | None, n_before: int = 0) -> Generated:
        """``n_before``: new tokens of the sample so far."""
        if self.stopped and request.rejected is None:  # a rejected token must be replaced by the policy that rejected it
            return Generated(as_ids(), as_log_probs(), "unfinished")
        rejected = request.rejected
        params = SamplingParams(
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=request.max_tokens,
            min_tokens=0,  # a prefix may lack only its end token, so the end token must be allowed first
            seed=request.seed,
            logprobs=0,  # only the sampled token's log-prob
            flat_logprobs=True,
            logit_bias=None if rejected is None else {rejected.token_id: math.log(max(rejected.weight, 1e-40))},
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if self.stops else RequestOutputKind.FINAL_ONLY,
            stream_interval=STREAMED,
            extra_args=drafts,
        )
        token_ids, log_probs = as_ids(), as_log_probs()
        reason, name = None, random_uuid()
        if rejected is None:  # otherwise it draws one token, at once
            self.running.add(name)
        try:
            priority = FROM_HERE if n_before else GENERATE
            async with aclosing(self._outputs(request.token_ids, params, name, priority)) as outputs:  # closing ends it
                async for output in outputs:
                    new, reason = output.outputs[0], output.outputs[0].finish_reason
                    token_ids.extend(new.token_ids)
                    log_probs.extend(log_probs_of(new.token_ids, new.logprobs))
                    if n_before + len(token_ids) >= self.most:
                        break
        finally:
            self.running.discard(name)
        if not token_ids and reason != _ABORTED:
            raise RuntimeError("the engine ended a request without any token")
        if rejected is not None:
            log_probs[0] = without_weight(token_ids[0], log_probs[0], rejected)
        return Generated(token_ids, log_probs, "unfinished" if reason in (None, _ABORTED) else reason)

    def _outputs(
        self, token_ids: TokenIds, params: SamplingParams, name: str, priority: int
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt = TokensPrompt(prompt_token_ids=token_ids.tolist())
        return self.llm.generate(prompt, params, request_id=name, priority=priority)

    async def score_group(self, paths: list[ScoreRequest]) -> list[LogProbs]:
        """The policy's log-probs of each path's tokens, at temperature 1."""
        return await asyncio.gather(*(self._score_one(path, SCORE) for path in paths))

    async def _score_one(self, path: ScoreRequest, priority: int) -> LogProbs:
        head = len(path.token_ids) - path.n_tokens - 1  # the token before a path gives the log-prob of its first
        params = SamplingParams(
            max_tokens=1,  # vLLM must generate at least one token, which is not used
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=False,
            extra_args={HEAD: head},
        )
        final = None
        async for output in self._outputs(path.token_ids, params, random_uuid(), priority):
            final = output
        if final is None or final.prompt_logprobs is None or final.num_cached_tokens > head:
            raise RuntimeError("the engine ended a request without the log-probs of its tokens")
        found = final.prompt_logprobs  # cached tokens have none or, with model runner V1, arbitrary ones
        return as_log_probs(log_probs_of(path.token_ids[head + 1 :], found[len(found) - path.n_tokens :]))


def engine_for(rpo: Any, param_dtype: str, trains: bool = True) -> Any:
    """The engine of a run with these ``--rpo.*`` options and ``--ds.param_dtype``; one that only samples from the bare
    question (``trains`` false) needs no drafts."""
    own = {"limits": limits_of(rpo.engine_limits), "dtype": DTYPES[param_dtype]}
    if trains:
        drafts = rpo.drafts
        own["stops"] = rpo.tail < 1
        own["speculation"] = None if drafts.mode == "off" else speculative_config(drafts.tokens, drafts.mode == "auto")
    at_once = 1_000_000  # Ray's 1,000 would let a call to stop wait behind the groups
    return ray.remote(max_concurrency=at_once)(type(_RPOEngine.__name__, (_RPOEngine,), own))
