"""The child side of the reward pool: load the reward once, then answer one request at a time in the main thread.

This is a program of its own rather than a multiprocessing child: it inherits no modules and does not run the parent's
``__main__`` again, so it starts fast even inside a Ray actor.

The parent sends pickles: the source, then (number, request) pairs. The child answers in lines of JSON, because unpickling
what came through a user's code could run or raise anything: null once the reward is loaded (or the reason why it cannot be),
then [number, {"rewards", "scores", "extra_logs"} or the cause of failure].
"""

import json
import os
import pickle
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from openrlhf_rpo.rollout.reward_call import RewardCall, RewardRequest, describe

MARK = "RPO_REWARD_WORKER"
"""The variable that tells a worker's processes from all others, whatever session or parent they have."""
_PATIENCE = 2.0  # seconds for killed processes to go


def main(descriptor: int, parent: int) -> None:
    """Serve ``descriptor``, one end of a socket pair, until the other end closes or process ``parent`` exits."""
    os.set_inheritable(descriptor, False)
    # The mark is read before the user's file, which may clear its environment.
    threading.Thread(target=_end_with, args=(parent, os.environ[MARK]), daemon=True).start()
    stream = socket.socket(fileno=descriptor).makefile("rwb")

    def send(message: object) -> None:
        stream.write(json.dumps(message).encode() + b"\n")
        stream.flush()

    try:
        source = pickle.load(stream)
        try:
            call = source.load()
        except BaseException as error:  # report whatever the user's file raises, including SystemExit
            send(describe(error))
            return
        send(None)
        while True:
            number, request = pickle.load(stream)
            send([number, _answer(call, request)])
    except (EOFError, ConnectionError, pickle.UnpicklingError):
        return  # the pool was closed, perhaps within a message


def end_all(mark: str) -> None:
    """Kill every other process that was started with this ``MARK`` (Linux). Those that clear it escape."""
    end = time.monotonic() + _PATIENCE
    while (left := _marked(f"{MARK}={mark}".encode())) and time.monotonic() < end:  # again: they may have started others
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _marked(variable: bytes) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or gone
            if variable in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def _answer(call: RewardCall, request: RewardRequest) -> dict[str, object] | str:
    try:
        result = call(request)
        return {"rewards": result.reward, "scores": result.score, "extra_logs": result.extra}
    except BaseException as error:  # as above
        return describe(error)
    finally:
        signal.alarm(0)  # an alarm left by the user's code must not hit the next request


def _end_with(parent: int, mark: str) -> None:
    """Exit with the parent: a killed parent cannot end its workers, and a hanging call would not notice."""
    while os.getppid() == parent:
        time.sleep(1)
    end_all(mark)
    os.killpg(0, signal.SIGKILL)
