"""Rewards from HTTP servers, with upstream's protocol: POST {"query": [q], "prompts": [p], "labels": [l]}.

For the answer see ``reward_call.read_answer``. Source: ``openrlhf/utils/agent.py``,
``SingleTurnAgentExecutor._fetch_rewards_via_http``.
"""

import asyncio
import base64
import itertools
import json
import netrc
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import aiohttp

from openrlhf_rpo.errors import without_credentials
from openrlhf_rpo.rollout.reward_call import RewardRequest, RewardResult, last_line, read_answer
from openrlhf_rpo.rollout.reward_pool import NOT_TRIED

_TRIES = 3
_BACKOFF_SECONDS = 0.5  # before the second try; doubled before the third
_CALLS_PER_SERVER = 32  # at the same time
_MOST_BYTES = 2**20  # of an answer


class HttpRewards:
    """Calls the servers at ``urls`` in turn, at most ``timeout`` seconds per try; a retry goes to the next server."""

    def __init__(self, urls: Sequence[str], timeout: float, *, on_failure: float = 0.0) -> None:
        """Raises OSError when ~/.netrc cannot be used."""
        self.timeout = timeout
        self.on_failure = on_failure
        self._calls = _CALLS_PER_SERVER * len(urls)
        self._servers = [(url, _login(url)) for url in urls]
        self._first = itertools.count()  # the server that the next request tries first
        self._closed = False

    def score(self, requests: Sequence[RewardRequest], max_failures: int | None = None) -> list[RewardResult]:
        """As ``RewardPool.score``."""
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may already run an event loop
            return thread.submit(asyncio.run, self._score(requests, max_failures)).result()

    def close(self) -> None:
        """No connection stays open between calls; a call in another thread tries no further requests."""
        self._closed = True

    async def _score(self, requests: Sequence[RewardRequest], max_failures: int | None) -> list[RewardResult]:
        gate, failures = asyncio.Semaphore(self._calls), 0
        limit = aiohttp.ClientTimeout(total=self.timeout)

        async def one(request: RewardRequest) -> RewardResult:
            nonlocal failures
            async with gate:
                if self._closed or (max_failures is not None and failures > max_failures):
                    return self._failed(NOT_TRIED)
                result = await self._ask(session, request)
                failures += result.failure is not None
                return result

        connector = aiohttp.TCPConnector(limit=0)  # limited by the gate: waiting for a connection counts as timeout
        # Unpacked, a small answer could fill the memory.
        plain = {"headers": {"Accept-Encoding": "identity"}, "auto_decompress": False}
        async with aiohttp.ClientSession(timeout=limit, connector=connector, **plain) as session:
            return await asyncio.gather(*map(one, requests))

    async def _ask(self, session: aiohttp.ClientSession, request: RewardRequest) -> RewardResult:
        payload = {"query": [request.query], "prompts": [request.prompt], "labels": [request.label]}
        cause, first = "", next(self._first)
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_BACKOFF_SECONDS * 2 ** (attempt - 1))
            url, login = self._servers[(first + attempt) % len(self._servers)]
            try:
                async with session.post(url, json=payload, headers=login, allow_redirects=False) as response:
                    return read_answer(json.loads(await _body(response)))
            except TimeoutError:
                cause = f"{url}: no answer within {self.timeout:g} s"
            except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
                # ValueError: no JSON, or not upstream's dictionary; RecursionError: JSON too deep
                cause = f"{url}: {without_credentials(last_line(error))}"
        return self._failed(f"{cause} ({_TRIES} tries)")

    def _failed(self, cause: str) -> RewardResult:
        return RewardResult(self.on_failure, self.on_failure, failure=cause)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The bytes of an answer. Raises aiohttp's error for a bad status, and ValueError for a redirect, which could send the
    prompts to anyone, for packed bytes, and for too many."""
    response.raise_for_status()
    if response.status >= 300:
        where = re.split("[?#]", response.headers.get("Location", "nowhere"))[0]
        raise ValueError(f"status {response.status} redirects to {where}, which is not followed: give that address")
    if packed := response.headers.get("Content-Encoding"):
        raise ValueError(f"the answer is packed ({packed}) although that was not asked for")
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > _MOST_BYTES:
            raise ValueError(f"the answer has more than {_MOST_BYTES:,} bytes")
    return bytes(body)


def _login(url: str) -> dict[str, str]:
    """The header with the login for the URL's host in ~/.netrc, if any. Raises OSError, without quoting the file."""
    try:
        found = netrc.netrc().hosts.get(urlsplit(url).hostname or "")
    except FileNotFoundError:
        return {}
    except (netrc.NetrcParseError, ValueError):
        raise PermissionError("~/.netrc cannot be used: it is malformed, or others may read it (chmod 600)") from None
    if found is None:
        return {}
    name, _, password = found
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
