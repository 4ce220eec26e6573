"""In an engine of vLLM's: what is read for log-probs takes only its head from the prefix cache; what goes on comes first."""

import json
import subprocess
import sys

import pytest

from lab.testbed import model_dir

PROGRAM = """
import asyncio, json, random, sys

from openrlhf_rpo import platform

platform.choose("cpu", 0.0)
platform.prepare()
from vllm import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from openrlhf_rpo.rollout.engine import FROM_HERE, GENERATE, SCORE, _RPOEngine
from openrlhf_rpo.rollout.requests import GroupRequest, Request, ScoreRequest
from openrlhf_rpo.rollout.scheduler import SCHEDULER

PROMPT = [3 + i % 12 for i in range(70)]
engine = object.__new__(_RPOEngine)
engine.longest, engine.running, cached, counts = 256, set(), [], {}


async def watched(outputs):
    async for output in outputs:
        yield output
    cached.append(output.num_cached_tokens)


async def computed(tokens, priority, outputs):
    async for output in outputs:
        yield output
    known, total = counts.get(priority, (0, 0))
    counts[priority] = known + output.num_cached_tokens, total + len(tokens)


def ask(*args):
    return watched(_RPOEngine._outputs(engine, *args))


def ask_and_count(tokens, params, name, priority):
    return computed(tokens, priority, _RPOEngine._outputs(engine, tokens, params, name, priority))


async def verify(group):
    # Four stored paths of 180 tokens are scored, and four samples go on behind 140 of them.
    draw = random.Random(group)
    texts = [PROMPT[:20] + draw.choices(PROMPT, k=180) for _ in range(4)]
    await engine.score_group([ScoreRequest(text, 180) for text in texts])
    await engine.generate_group(GroupRequest([Request(text[:160], 8, group, 1.0) for text in texts], 20, read=True))


async def main():
    fixed = {"block_size": 32, "enable_chunked_prefill": False, "enforce_eager": True, "dtype": "float32"}
    own = {"scheduler_cls": SCHEDULER, "logprobs_mode": "processed_logprobs", "max_model_len": engine.longest}
    own |= {"scheduling_policy": "priority", "num_gpu_blocks_override": 160, "max_num_batched_tokens": 512}
    engine.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(sys.argv[1], **fixed, **own))
    engine._outputs = ask
    drawn = await engine._complete(Request(PROMPT, 120, 1, 1.0), None)
    text = PROMPT + drawn.token_ids.tolist()
    found = {"drawn": drawn.log_probs.tolist(), "read": {}}
    for at in (70, 97, 128, 129, len(text) - 1):
        request = Request(text[:at], 120, 1, 1.0)
        rest = type(drawn)(text[at:], drawn.log_probs[at - 70 :], "length")
        found["read"][at] = (await engine._read(request, rest)).log_probs.tolist()
    found["cached"] = dict(zip(found["read"], cached[1:]))
    await engine.llm.reset_prefix_cache()
    found["whole"] = (await engine._read(Request(PROMPT, 120, 1, 1.0), drawn)).log_probs.tolist()
    found["cached"]["whole"] = cached[-1]
    engine._outputs = ask_and_count
    await asyncio.gather(*map(verify, range(16)))
    found["known"] = {"scored": counts[SCORE], "generated": counts[GENERATE], "read": counts[FROM_HERE]}
    engine.llm.shutdown()
    print(json.dumps(found))


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def found() -> dict:
    run = subprocess.run([sys.executable, "-c", PROGRAM, str(model_dir("hard"))], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_the_head_comes_from_the_cache_in_whole_blocks(found):
    end = 70 + len(found["drawn"])
    assert end > 130
    expected = {"70": 64, "97": 96, "128": 96, "129": 128, str(end - 1): (end - 2) // 32 * 32, "whole": 0}
    assert found["cached"] == expected


def test_the_log_probs_are_those_of_a_text_that_is_read_whole(found):
    for at, log_probs in found["read"].items():
        assert log_probs == found["whole"][int(at) - 70 :] and log_probs
    assert found["whole"] == pytest.approx(found["drawn"], abs=1e-5)


def test_a_group_goes_on_before_the_cache_has_dropped_what_was_read_of_it(found):
    """The stored paths have two and a half times as many tokens as fit."""
    known = {name: cached / total for name, (cached, total) in found["known"].items()}
    assert known == {"scored": 0, "generated": 128 / 160, "read": 128 / 168}  # whole blocks of 32
