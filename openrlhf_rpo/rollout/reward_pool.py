"""Rewards in processes that can be killed, so that no reward call can hang or crash a run.

Each worker has one request at a time. If it hangs, dies, raises or returns nonsense, that request failed: its cause is
recorded, the process is replaced, and no other request is affected. A round trip is much cheaper than a reward, so requests
are not batched.
"""

import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from openrlhf_rpo.errors import Failed
from openrlhf_rpo.rollout.reward_call import RewardRequest, RewardResult, RewardSource, read_answer
from openrlhf_rpo.rollout.reward_worker import MARK, end_all

NOT_TRIED = "not tried: too many others had failed"
_START_SECONDS = 120.0  # to start a process and load the user's file, which may import a large package
_SEND_SECONDS = 10.0
_LOOK_SECONDS = 0.05  # how soon a batch that is done stops waiting for a process that loads
_GRACE_SECONDS = 2.0  # for a process to exit by itself
_MOST_BYTES = 2**20  # of an answer
_GARBLED = "its process sent something else than an answer, and was killed"
_SIGNALS = {number: number.name for number in signal.Signals}


class RewardLoadError(Failed):
    """A worker process could not load the reward; the message says why."""


class _CallFailed(Exception):
    """One call failed; the message is the cause."""


class RewardPool:
    """``workers`` processes that compute rewards, each call within ``timeout`` seconds.

    A failed request gets ``on_failure`` as reward and score. Works in any thread and inside a Ray actor.
    """

    def __init__(
        self,
        source: RewardSource,
        workers: int,
        timeout: float,
        *,
        on_failure: float = 0.0,
        start_timeout: float = _START_SECONDS,
    ) -> None:
        self.timeout = timeout
        self.on_failure = on_failure
        self._slots = [_Slot(source, start_timeout) for _ in range(workers)]
        self._one_batch = threading.Lock()
        self._closed = False

    def warm_up(self) -> None:
        """Start the processes now, without waiting for them, rather than in the first ``score``."""
        for slot in self._slots:
            slot.start()

    def check(self) -> None:
        """Wait until one worker has loaded the reward. Raises RewardLoadError if it cannot."""
        self._slots[0].ready()

    def score(self, requests: Sequence[RewardRequest], max_failures: int | None = None) -> list[RewardResult]:
        """One result per request, in order. After more than ``max_failures`` failures the rest is NOT_TRIED."""
        todo = deque(enumerate(requests))
        results: dict[int, RewardResult] = {}
        failures = itertools.count(1)
        stop = threading.Event()

        def needed() -> bool:
            return bool(todo) and not (stop.is_set() or self._closed)

        def serve(slot: _Slot) -> str:
            """Take requests until none is left; returns the failure cause for requests that remain."""
            while needed():
                try:
                    if not slot.ready(needed):
                        break
                except RewardLoadError as error:
                    return str(error)  # other slots may still work
                try:
                    i, request = todo.popleft()
                except IndexError:  # another slot took the last one
                    break
                try:
                    results[i] = slot.call(request, self.timeout)
                except _CallFailed as error:
                    results[i] = self._failed(str(error))
                    if max_failures is not None and next(failures) > max_failures:
                        stop.set()
            return NOT_TRIED

        with self._one_batch, ThreadPoolExecutor(len(self._slots)) as threads:
            try:
                causes = list(threads.map(serve, self._slots))
            finally:
                stop.set()  # when interrupted, each thread stops after its current call
        for i, _ in todo:
            results[i] = self._failed(causes[0])
        return [results[i] for i in range(len(requests))]

    def close(self) -> None:
        """End every process. A call of ``score`` in another thread tries no further requests."""
        self._closed = True
        for slot in self._slots:
            slot.hang_up()
        for slot in self._slots:
            slot.end()

    def _failed(self, cause: str) -> RewardResult:
        return RewardResult(self.on_failure, self.on_failure, failure=cause)


class _Slot:
    """One worker: its current process, and how to replace it."""

    def __init__(self, source: RewardSource, start_timeout: float) -> None:
        self.source = source
        self.start_timeout = start_timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.received = b""
        self.loaded = False
        self.started = 0.0  # by time.monotonic
        self.numbers = itertools.count()
        self.mark = str(uuid.uuid4())

    def start(self) -> None:
        """Start the process unless it is running. Raises RewardLoadError when the system starts no more processes."""
        if self.process is not None and self.process.poll() is None:
            return
        self.end()
        self.loaded, self.received, self.started = False, b"", time.monotonic()
        try:
            self.connection, theirs = socket.socketpair()
            program = (
                f"import sys; sys.path[:] = {sys.path!r}; from openrlhf_rpo.rollout.reward_worker import main; "
                f"main({theirs.fileno()}, {os.getpid()})"
            )
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-u", "-c", program],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a reward prints goes to the log
                    env=os.environ | {MARK: self.mark},
                    start_new_session=True,  # a process group of its own, so that its children are killed with it
                )
        except OSError as error:
            raise RewardLoadError(f"no process for the reward can be started: {error}") from error
        self._send(self.source)

    def ready(self, needed: Callable[[], bool] = lambda: True) -> bool:
        """Wait until a live process has loaded the reward; False if it is no longer ``needed``. Raises RewardLoadError.

        A process that is not waited for goes on loading.
        """
        self.start()
        if self.loaded:
            return True
        assert self.connection is not None
        with suppress(ValueError):  # the pool was closed meanwhile: the next receive reports that
            while not wait([self.connection], _LOOK_SECONDS) and time.monotonic() < self.started + self.start_timeout:
                if not needed():
                    return False
        try:
            cause = self._receive(self.start_timeout, self.started)
        except _CallFailed as error:
            cause = str(error)
        if cause is not None:
            self.end()
            raise RewardLoadError(f"the reward cannot be loaded: {cause}")
        self.loaded = True
        return True

    def call(self, request: RewardRequest, timeout: float) -> RewardResult:
        """One call. Raises _CallFailed with the cause."""
        number = next(self.numbers)
        self._send((number, request))
        match self._receive(timeout):
            case [answered, dict() | str()] if answered != number:  # the user's code forked, and both processes answer
                cause = "answered twice; its process was ended"
            case [_, str() as cause]:
                raise _CallFailed(cause)
            case [_, dict() as answer]:
                with suppress(ValueError):
                    return read_answer(answer)
                cause = _GARBLED
            case _:
                cause = _GARBLED
        self.end()
        raise _CallFailed(cause)

    def hang_up(self) -> None:
        """Ask the process to exit, by closing the connection."""
        if self.connection is not None:
            self.connection.close()

    def end(self) -> int | None:
        """End the process and its children; returns its exit code, or None without a process."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        if self.connection is None or self.connection.fileno() < 0:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        self.hang_up()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        end_all(self.mark)
        return process.wait()

    def _send(self, message: object) -> None:
        assert self.connection is not None
        with suppress(OSError):  # it died or stopped meanwhile: the next receive reports that
            self.connection.settimeout(_SEND_SECONDS)  # a stopped process reads nothing
            self.connection.sendall(pickle.dumps(message))

    def _receive(self, timeout: float, since: float | None = None) -> Any:
        """The next message; ends the process if it does not come whole within ``timeout`` seconds (of ``since`` or now)."""
        assert self.connection is not None
        end = (time.monotonic() if since is None else since) + timeout
        try:
            while b"\n" not in self.received:
                self.connection.settimeout(max(end - time.monotonic(), 1e-3))
                part = self.connection.recv(2**16)
                self.received += part
                if not part:
                    raise EOFError
                if len(self.received) > _MOST_BYTES:
                    raise ValueError
            line, _, self.received = self.received.partition(b"\n")
            return json.loads(line)
        except TimeoutError:
            self.end()
            raise _CallFailed(f"no answer within {timeout:g} s; its process was killed") from None
        except (EOFError, OSError):
            raise _CallFailed(_died(self.end())) from None
        except (ValueError, RecursionError):
            self.end()
            raise _CallFailed(_GARBLED) from None


def _died(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process died of {_SIGNALS.get(-code, f'signal {-code}')}"
    return f"its process exited with code {code}"
