"""Rewards from HTTP servers, with upstream's protocol: POST {"query": [q], "prompts": [p], "labels": [l]}.

For the answer see ``reward_call.read_answer``. Source: ``openrlhf/utils/agent.py``,
``SingleTurnAgentExecutor._fetch_rewards_via_http``.
"""

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from openrlhf_rpo.rollout.reward_call import RewardRequest, RewardResult, last_line, read_answer
from openrlhf_rpo.rollout.reward_pool import NOT_TRIED

_TRIES = 3
_BACKOFF_SECONDS = 0.5  # before the second try; doubled before the third
_CALLS_PER_SERVER = 32  # at the same time


class HttpRewards:
    """Calls the servers at ``urls`` in turn, at most ``timeout`` seconds per try; a retry goes to the next server."""

    def __init__(self, urls: Sequence[str], timeout: float, *, on_failure: float = 0.0) -> None:
        self.timeout = timeout
        self.on_failure = on_failure
        self._calls = _CALLS_PER_SERVER * len(urls)
        self._urls = list(urls)
        self._first = itertools.count()  # the server that the next request tries first

    def score(self, requests: Sequence[RewardRequest], max_failures: int | None = None) -> list[RewardResult]:
        """As ``RewardPool.score``."""
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may already run an event loop
            return thread.submit(asyncio.run, self._score(requests, max_failures)).result()

    def close(self) -> None:
        """Nothing to do: no connection stays open between calls."""

    async def _score(self, requests: Sequence[RewardRequest], max_failures: int | None) -> list[RewardResult]:
        gate, failures = asyncio.Semaphore(self._calls), 0
        limit = aiohttp.ClientTimeout(total=self.timeout)

        async def one(request: RewardRequest) -> RewardResult:
            nonlocal failures
            async with gate:
                if max_failures is not None and failures > max_failures:
                    return self._failed(NOT_TRIED)
                result = await self._ask(session, request)
                failures += result.failure is not None
                return result

        connector = aiohttp.TCPConnector(limit=0)  # limited by the gate: waiting for a connection counts as timeout
        async with aiohttp.ClientSession(timeout=limit, connector=connector) as session:
            return await asyncio.gather(*map(one, requests))

    async def _ask(self, session: aiohttp.ClientSession, request: RewardRequest) -> RewardResult:
        payload = {"query": [request.query], "prompts": [request.prompt], "labels": [request.label]}
        cause, first = "", next(self._first)
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))
            url = self._urls[(first + attempt) % len(self._urls)]
            try:
                async with session.post(url, json=payload) as response:
                    response.raise_for_status()
                    return read_answer(await response.json(content_type=None))
            except TimeoutError:
                cause = f"{url}: no answer within {self.timeout:g} s"
            except (aiohttp.ClientError, ValueError) as error:  # ValueError: no JSON, or not upstream's dictionary
                cause = f"{url}: {last_line(error)}"
        return self._failed(f"{cause} ({_TRIES} tries)")

    def _failed(self, cause: str) -> RewardResult:
        return RewardResult(self.on_failure, self.on_failure, failure=cause)
