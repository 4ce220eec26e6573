"""What an engine is started with, and what it hands back of a token that was drawn with another token's weight."""

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm.engine import arg_utils
from vllm.logprobs import FlatLogprobs

from openrlhf_rpo.rollout.engine import _RPOEngine, log_probs_of, offline_limits, without_weight
from openrlhf_rpo.rollout.requests import Generated, Request, ScoreRequest, rounding
from openrlhf_rpo.types import Rejected, as_ids, as_log_probs

POLICY = {3: 0.5, 4: 0.3, 5: 0.2}


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("token", POLICY)
def test_log_probs_are_the_policys_without_the_weight(token, weight):
    rejected = Rejected(3, math.log(POLICY[3]), weight)
    drawn_with = {t: p * (weight if t == 3 else 1.0) for t, p in POLICY.items()}
    reported = drawn_with[token] / sum(drawn_with.values())
    after = math.log(reported) if reported else -math.inf
    assert without_weight(token, after, rejected) == pytest.approx(math.log(POLICY[token]))


@pytest.mark.parametrize(("prompt", "new"), [(4, 3), (5, 3), (7, 1)])
def test_new_tokens_get_the_log_probs_of_reading_but_for_one_that_fills_the_engine(prompt, new):
    engine = object.__new__(_RPOEngine)
    engine.longest, asked = 8, []

    async def score(request, priority):
        asked.append(request)
        return as_log_probs([-1.0] * request.n_tokens)

    engine._score_one = score
    drawn = Generated((9,) * new, (-2.0,) * new, "length")
    read = asyncio.run(engine._read(Request((5,) * prompt, new, 0, 1.0), drawn))
    n = min(prompt + new, 7) - prompt
    assert read == Generated((9,) * new, (-1.0,) * n + (-2.0,) * (new - n), "length")
    assert [(len(request.token_ids), request.n_tokens) for request in asked] == ([(prompt + n, n)] if n else [])


@pytest.mark.parametrize(("cached", "ok"), [(1, True), (2, False)])
def test_log_probs_of_cached_tokens_are_refused(cached, ok):
    """vLLM has none of these; of the path 7 8 after 1 2, the token 2 must be read."""
    engine = object.__new__(_RPOEngine)
    found = FlatLogprobs([0, 1], [1, 2], [7, 8], [-0.5, -0.25], [1, 1], [None, None])

    async def generate(prompt, params, request_id, priority):
        yield SimpleNamespace(prompt_logprobs=found, num_cached_tokens=cached)

    engine.llm, path = SimpleNamespace(generate=generate), ScoreRequest(as_ids((1, 2, 7, 8)), 2)
    if ok:
        assert list(asyncio.run(engine._score_one(path, 0))) == [-0.5, -0.25]
    else:
        with pytest.raises(RuntimeError, match="without the log-probs of its tokens"):
            asyncio.run(engine._score_one(path, 0))


def test_a_request_that_ends_without_a_token_is_an_error():
    engine = object.__new__(_RPOEngine)
    engine.stopped, engine.running, engine.most = False, set(), 9

    async def generate(prompt, params, request_id, priority):
        empty = FlatLogprobs([], [], [], [], [], [])
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[], logprobs=empty, finish_reason="error")])

    engine.llm = SimpleNamespace(generate=generate)
    with pytest.raises(RuntimeError, match="ended a request without any token"):
        asyncio.run(engine._generate_one(Request(as_ids((1, 2)), 9, 0, 1.0), None))


def test_the_prefix_cache_is_dropped_once_nothing_runs_or_it_is_an_error(monkeypatch):
    async def at_once(seconds):
        pass

    monkeypatch.setattr(asyncio, "sleep", at_once)
    engine, answers = object.__new__(_RPOEngine), [False, False, True, False]

    async def reset():
        return answers.pop(0) if len(answers) > 1 else answers[0]

    engine.llm = SimpleNamespace(reset_prefix_cache=reset)
    asyncio.run(engine.reset_prefix_cache())
    assert answers == [False]
    with pytest.raises(RuntimeError, match="cannot drop its prefix cache"):
        asyncio.run(engine.reset_prefix_cache())


def test_log_probs_of_other_tokens_are_refused():
    found = FlatLogprobs([0, 1], [1, 2], [7, 8], [-0.5, -0.25], [1, 1], [None, None])
    assert log_probs_of([7, 8], found) == [-0.5, -0.25] and log_probs_of([8], found[1:]) == [-0.25]
    for other in ([7], [7, 9]):
        with pytest.raises(RuntimeError, match="not those of its tokens"):
            log_probs_of(other, found)


def test_rounding_counts_what_verified_reuse_would_reject():
    drawn = Generated((1, 2, 3), (-1.0, -2.0, -3.0), "stop")
    read = Generated((1, 2, 3), (-1.0, -1.5, -3.0 + math.log(0.75)), "stop")
    found = rounding([(drawn, read), (drawn, drawn)])
    assert found["read"] == 6
    assert found["gap"] == pytest.approx(0.5 - math.log(0.75)) and found["noise"] == pytest.approx(0.25)


GPUS = {
    "NVIDIA H100 80GB HBM3": (80, 1024, 16384),
    "NVIDIA A100-SXM4-80GB": (80, 256, 8192),
    "NVIDIA A10G": (24, 256, 8192),
}


@pytest.mark.parametrize(("name", "sizes"), GPUS.items(), ids=GPUS.keys())
def test_an_engine_has_the_limits_of_offline_work(name, sizes, monkeypatch):
    memory, sequences, tokens = sizes
    gpu = {"get_device_total_memory": lambda: memory * 2**30, "get_device_name": lambda: name}
    monkeypatch.setattr(arg_utils, "current_platform", SimpleNamespace(**gpu, is_tpu=lambda: False, is_cpu=lambda: False))
    assert offline_limits(4096, 1) == {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}
    assert offline_limits(32768, 1)["max_num_batched_tokens"] == 32768


def test_a_stop_reaches_samples_that_the_engine_does_not_know_yet():
    """vLLM admits requests in a thread of its own; an abort before that does nothing."""
    engine = object.__new__(_RPOEngine)
    engine.running, aborts = {"known", "late"}, []

    async def abort(names):
        aborts.append(set(names))
        engine.running.discard("known")
        if len(aborts) == 3:
            engine.running.discard("late")

    engine.llm = SimpleNamespace(abort=abort)
    asyncio.run(engine.stop())
    assert engine.stopped and aborts == [{"known", "late"}, {"late"}, {"late"}]


def test_a_stop_leaves_the_first_token_after_a_rejection_to_the_policy_that_rejected():
    engine = object.__new__(_RPOEngine)
    engine.stopped, engine.running = True, set()

    async def generate(prompt, params, request_id, priority):
        found = FlatLogprobs([0], [1], [5], [-1.0], [1], [None])
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5], logprobs=found, finish_reason="length")])

    engine.llm = SimpleNamespace(generate=generate)
    plain = Request(as_ids((1, 2)), max_tokens=9, seed=0, temperature=1.0, top_p=1.0, rejected=None)
    begun = [
        asyncio.run(engine._generate_one(one, None)) for one in (plain, replace(plain, rejected=Rejected(3, -0.5, 0.0)))
    ]
    assert [(list(one.token_ids), one.finish_reason) for one in begun] == [([], "unfinished"), ([5], "unfinished")]
