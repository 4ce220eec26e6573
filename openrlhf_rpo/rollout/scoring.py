"""The source of a run's rewards, and the limit on failed ones."""

import logging
import math
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from openrlhf_rpo.config import RewardOptions
from openrlhf_rpo.credentials import objection
from openrlhf_rpo.errors import Failed, UsageError, visible
from openrlhf_rpo.rewards import weighted_sum
from openrlhf_rpo.rollout.http_rewards import HttpRewards
from openrlhf_rpo.rollout.reward_call import RewardFile, RewardRequest, RewardResult, ShippedRewards
from openrlhf_rpo.rollout.reward_pool import NOT_TRIED, RewardLoadError, RewardPool

logger = logging.getLogger(__name__)

_SHOWN = 5  # how many failures an error lists
_NONE_MAY_FAIL = "none may fail with --rpo.reward.max_failure_share 0, the default of evaluations"


class RewardFailures(Failed):
    """More rewards failed in one call than --rpo.reward.max_failure_share, or an evaluation, allows."""


class Scorer:
    """Computes rewards, logs and counts failures (``failures``, over the whole run), and limits them per call."""

    def __init__(self, rewards: RewardPool | HttpRewards, max_failure_share: float) -> None:
        self.rewards = rewards
        self.max_failure_share = max_failure_share
        self._tally = Counter[str]()

    @property
    def failures(self) -> int:
        return self._tally["failed"]

    @failures.setter
    def failures(self, n: int) -> None:
        self._tally["failed"] = n

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Failures of calls that begin inside do not count; those of running calls do."""
        of_run, self._tally = self._tally, Counter()
        try:
            yield
        finally:
            self._tally = of_run

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result per request, in order; failed ones have the stand-in value. Raises RewardFailures if too many fail."""
        with self.begin(len(requests)) as scoring:
            scoring.add(requests)
            return scoring.finish()

    def begin(self, total: int) -> "Scoring":
        """Rewards of ``total`` samples, as ``score``, but computed while the caller makes further samples."""
        return Scoring(self, total)

    def close(self) -> None:
        self.rewards.close()


class Scoring:
    """One call of a ``Scorer`` for samples that come in parts. Leaving the ``with`` early drops what was not begun."""

    def __init__(self, scorer: Scorer, total: int) -> None:
        self.scorer = scorer
        self.total = total
        self._tally = scorer._tally
        share = scorer.max_failure_share
        # One is allowed unless the share is 0: with dynamic sampling a round may hold a single question's samples.
        self.allowed = max(math.ceil(share), math.floor(share * total + 1e-9))  # 0.29 * 100 is 28.999...
        self._waiting: deque[RewardRequest] = deque()
        self._results: list[RewardResult] = []
        self._failed: list[tuple[str, str]] = []
        self._thread = ThreadPoolExecutor(1)
        self._parts: list[Future[None]] = []

    def __enter__(self) -> "Scoring":
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def add(self, requests: Sequence[RewardRequest]) -> None:
        """Compute these rewards after those added before."""
        self._waiting.extend(requests)
        self._parts.append(self._thread.submit(self._score_waiting))

    def finish(self) -> list[RewardResult]:
        """One result per request, in the order in which they were added. Raises RewardFailures if too many failed."""
        for part in self._parts:
            part.result()
        if len(self._failed) > self.allowed:
            raise RewardFailures(self._message())
        return self._results

    def _score_waiting(self) -> None:
        """Score all that waits in one call, so that all workers or connections are busy."""
        requests = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not requests:
            return
        left = self.allowed - len(self._failed)
        if left < 0:
            value = self.scorer.rewards.on_failure
            self._results += [RewardResult(value, value, failure=NOT_TRIED)] * len(requests)
            return
        results = self.scorer.rewards.score(requests, max_failures=left)
        for request, result in zip(requests, results, strict=True):
            if result.failure is not None and result.failure != NOT_TRIED:
                self._failed.append((request.question_id, visible(result.failure)))
                self._tally["failed"] += 1
                logger.warning("reward of question %s failed: %s", *self._failed[-1])
        self._results += results

    def _message(self) -> str:
        not_tried = [result.failure for result in self._results].count(NOT_TRIED)
        shown = "".join(f"\n  question {question_id}: {cause}" for question_id, cause in self._failed[:_SHOWN])
        more = f"\n  and {len(self._failed) - _SHOWN} more" if len(self._failed) > _SHOWN else ""
        stopped = f", {not_tried} were not tried any more" if not_tried else ""
        share = self.scorer.max_failure_share
        limit = f"--rpo.reward.max_failure_share is {share:g}" if share else _NONE_MAY_FAIL
        return f"{len(self._failed)} of {self.total} rewards failed{stopped}; {limit}{shown}{more}"


def make_scorer(options: RewardOptions, remote_urls: list[str] | None) -> Scorer | None:
    """The scorer for shipped functions, else for ``remote_urls``: a Python file or HTTP servers; None with a reward model.

    With shipped functions ``remote_urls`` is only the placeholder that upstream needs. Reward processes start right away, so
    that they are ready for the first reward.
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
    """Raises UsageError unless the functions are known, the file loads and defines reward_func, or the URLs are valid."""
    source = _source(options, remote_urls)
    if isinstance(source, ShippedRewards):
        try:
            weighted_sum(source.functions, source.weights)
        except ValueError as error:
            raise UsageError(str(error)) from error
    elif isinstance(source, RewardFile):
        _check_file(source, remote_urls or [])
    elif isinstance(source, list):
        for number, url in enumerate(source, 1):
            _check_url(url, number)
        try:
            HttpRewards(source, options.timeout)
        except OSError as error:
            raise UsageError(f"--reward.remote_url: {error}") from error


def _source(options: RewardOptions, remote_urls: list[str] | None) -> ShippedRewards | RewardFile | list[str] | None:
    if options.functions:
        return ShippedRewards(options.functions, options.weights, options.cosine_max_len)
    if not remote_urls:
        return None
    return RewardFile(remote_urls[0]) if remote_urls[0].endswith(".py") else list(remote_urls)


def _check_file(source: RewardFile, given: list[str]) -> None:
    path = os.path.abspath(source.path)
    if len(given) > 1:
        raise UsageError(f"--reward.remote_url {','.join(given)}: a Python file must be the only one given")
    if not os.path.isfile(path):
        raise UsageError(f"--reward.remote_url {source.path}: there is no file {path}")
    if not os.access(path, os.R_OK):
        raise UsageError(f"--reward.remote_url {source.path}: {path} is not readable")
    with closing(RewardPool(source, workers=1, timeout=1)) as pool:
        try:
            pool.check()
        except RewardLoadError as error:
            raise UsageError(f"--reward.remote_url {source.path}: {error}") from error


def _check_url(url: str, number: int) -> None:
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and objection(url) is None
    except ValueError:  # an invalid port, or unbalanced brackets
        well_formed = False
    if not well_formed:  # not quoted: it could hold a password
        raise UsageError(
            f"--reward.remote_url: address {number} is neither a Python file nor a URL like http://host:port/path, without "
            "user, password, or any of ? # ; & = @"
        )
