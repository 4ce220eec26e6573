"""Where a run's rewards come from, and what happens when too many of them fail."""

import logging
import math
import os
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import urlsplit

from openrlhf_rpo.config import RewardOptions
from openrlhf_rpo.rewards import weighted_sum
from openrlhf_rpo.rollout.http_rewards import HttpRewards
from openrlhf_rpo.rollout.reward_call import RewardFile, RewardRequest, RewardResult, ShippedRewards
from openrlhf_rpo.rollout.reward_pool import NOT_TRIED, RewardLoadError, RewardPool

logger = logging.getLogger(__name__)

_SHOWN = 5  # failures that an error names


class RewardFailures(RuntimeError):
    """More rewards of one call failed than --rpo.reward.max_failure_share allows."""


class Scorer:
    """Rewards with their failures counted (``failures``, over the run), logged, and bounded in each call."""

    def __init__(self, rewards: RewardPool | HttpRewards, max_failure_share: float) -> None:
        self.rewards = rewards
        self.max_failure_share = max_failure_share
        self.failures = 0

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result a request, in order; failed ones hold the stand-in. Raises RewardFailures for too many."""
        allowed = math.floor(self.max_failure_share * len(requests) + 1e-9)  # 0.29 * 100 is 28.999...
        results = self.rewards.score(requests, max_failures=allowed)
        failed = [
            (request.question_id, result.failure)
            for request, result in zip(requests, results, strict=True)
            if result.failure is not None and result.failure != NOT_TRIED
        ]
        self.failures += len(failed)
        for question_id, cause in failed:
            logger.warning("reward of question %s failed: %s", question_id, cause)
        if len(failed) > allowed:
            raise RewardFailures(self._message(failed, len(requests), [r.failure for r in results].count(NOT_TRIED)))
        return results

    def close(self) -> None:
        """End the reward processes."""
        self.rewards.close()

    def _message(self, failed: list[tuple[str, str]], total: int, not_tried: int) -> str:
        shown = "".join(f"\n  question {question_id}: {cause}" for question_id, cause in failed[:_SHOWN])
        more = f"\n  and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        stopped = f", {not_tried} were not tried any more" if not_tried else ""
        return (
            f"{len(failed)} of {total} rewards failed{stopped}; --rpo.reward.max_failure_share is "
            f"{self.max_failure_share:g}{shown}{more}"
        )


def make_scorer(options: RewardOptions, remote_urls: list[str] | None) -> Scorer | None:
    """Shipped functions, else a Python file, else HTTP servers (``remote_urls``); None: a reward model scores.

    Shipped functions win over ``remote_urls``, which then only holds their stand-in. The reward processes start at
    once, so that they have loaded by the time of the first reward.
    """
    source = _source(options, remote_urls)
    if source is None:
        return None
    if isinstance(source, list):
        rewards: RewardPool | HttpRewards = HttpRewards(source, options.timeout, on_failure=options.on_failure)
    else:
        rewards = RewardPool(source, options.workers, options.timeout, on_failure=options.on_failure)
        rewards.warm_up()
    return Scorer(rewards, options.max_failure_share)


def check_reward_source(options: RewardOptions, remote_urls: list[str] | None) -> None:
    """Known functions, a file that loads and defines reward_func, or well-formed URLs; else ValueError says why."""
    if options.functions and remote_urls:
        raise ValueError("--rpo.reward.functions and --reward.remote_url are two sources of one reward: give one")
    source = _source(options, remote_urls)
    if isinstance(source, ShippedRewards):
        weighted_sum(source.functions, source.weights)
    elif isinstance(source, RewardFile):
        _check_file(source, remote_urls or [])
    for url in source if isinstance(source, list) else []:
        _check_url(url)


def _source(options: RewardOptions, remote_urls: list[str] | None) -> ShippedRewards | RewardFile | list[str] | None:
    if options.functions:
        return ShippedRewards(options.functions, options.weights, options.cosine_max_len)
    if not remote_urls:
        return None
    return RewardFile(remote_urls[0]) if remote_urls[0].endswith(".py") else list(remote_urls)


def _check_file(source: RewardFile, given: list[str]) -> None:
    path = os.path.abspath(source.path)
    if len(given) > 1:
        raise ValueError(f"--reward.remote_url {','.join(given)}: a Python file must be the only one given")
    if not os.path.isfile(path):
        raise ValueError(f"--reward.remote_url {source.path}: there is no file {path}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"--reward.remote_url {source.path}: {path} is not readable")
    with closing(RewardPool(source, workers=1, timeout=1)) as pool:
        try:
            pool.check()
        except RewardLoadError as error:
            raise ValueError(f"--reward.remote_url {source.path}: {error}") from error


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or brackets that do not match
        well_formed = False
    if not well_formed:
        raise ValueError(f"--reward.remote_url {url}: neither a Python file nor a URL like http://host:port/path")
