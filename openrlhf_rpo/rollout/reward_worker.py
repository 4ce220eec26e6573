"""The child side of the reward pool: load the reward once, then answer one request at a time, in the main thread.

A program of its own rather than a multiprocessing child: it inherits no module of the parent and does not run the
parent's ``__main__`` again, so it starts in a moment also beneath a Ray actor.

The connection carries, from the parent, the source and then (number, request) pairs; to the parent, None once loaded
(or the cause why not) and then (number, result or cause) pairs.
"""

import os
import signal
import threading
import time
from multiprocessing.connection import Connection

from openrlhf_rpo.rollout.reward_call import RewardCall, RewardRequest, RewardResult, describe


def main(descriptor: int, parent: int) -> None:
    """Serve ``descriptor``, one end of a socket pair, until the other end closes or process ``parent`` is gone."""
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection = Connection(descriptor)
    try:
        source = connection.recv()
        try:
            call = source.load()
        except BaseException as error:  # whatever the user's file raises, SystemExit too, is the cause to report
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
    except BaseException as error:  # as above: the failure belongs to this request and travels to the parent
        return describe(error)
    finally:
        signal.alarm(0)  # an alarm that the user's code left behind must not strike the next request


def _end_with(parent: int) -> None:
    """A parent that was killed cannot end its workers, and a call that hangs would never notice."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)
