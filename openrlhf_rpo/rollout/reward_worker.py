"""The child side of the reward pool: load the reward once, then answer one request at a time in the main thread.

This is a program of its own rather than a multiprocessing child: it inherits no modules and does not run the parent's
``__main__`` again, so it starts fast even inside a Ray actor.

The parent sends the source, then (number, request) pairs. The child sends None once the reward is loaded (or the reason why
it cannot be), then (number, result or cause of failure) pairs.
"""

import os
import signal
import threading
import time
from multiprocessing.connection import Connection

from openrlhf_rpo.rollout.reward_call import RewardCall, RewardRequest, RewardResult, describe


def main(descriptor: int, parent: int) -> None:
    """Serve ``descriptor``, one end of a socket pair, until the other end closes or process ``parent`` exits."""
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection = Connection(descriptor)
    try:
        source = connection.recv()
        try:
            call = source.load()
        except BaseException as error:  # report whatever the user's file raises, including SystemExit
            connection.send(describe(error))
            return
        connection.send(None)
        while True:
            number, request = connection.recv()
            connection.send((number, _answer(call, request)))
    except (EOFError, ConnectionError):
        return  # the pool was closed


def _answer(call: RewardCall, request: RewardRequest) -> RewardResult | str:
    try:
        return call(request)
    except BaseException as error:  # as above
        return describe(error)
    finally:
        signal.alarm(0)  # an alarm left by the user's code must not hit the next request


def _end_with(parent: int) -> None:
    """Exit with the parent: a killed parent cannot end its workers, and a hanging call would not notice."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
