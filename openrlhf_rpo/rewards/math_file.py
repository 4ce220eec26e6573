"""The shipped math reward as a file that plain OpenRLHF can load with --reward.remote_url.

OpenRLHF calls it in threads, where math-verify has no time limit. There, a process of its own computes the reward: another
program rather than a multiprocessing child, so it inherits nothing of the engine that called, and ends with it.
"""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

from openrlhf_rpo.rewards.math import math_reward

_END = re.compile(r"(?:(?:</s>|<eos>|<\|[^<>|]*\|>|<\uff5c[^<>\uff5c]*\uff5c>)\s*)+$")
"""Special tokens at the end, which OpenRLHF leaves in the text and training on paths does not."""
_SECONDS = 30.0  # of one call, as --rpo.reward.timeout by default
_LOADING = 120.0  # seconds, as of other rewards


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **_: object) -> dict[str, float]:
    """OpenRLHF's interface: lists of one query (prompt + response), one prompt and one label. Works in any thread."""
    [query], [prompt], [label] = queries, prompts, labels
    judge = math_reward if threading.current_thread() is threading.main_thread() else _process.judge
    score = judge(_END.sub("", query[len(prompt) :]), label)
    return {"rewards": score, "scores": score}


def serve(descriptor: int, parent: int) -> None:
    """Answer (response, label) pairs with rewards, in the main thread, until the other end closes."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    caller = Connection(descriptor)
    with suppress(EOFError, OSError):
        caller.send(None)  # loaded
        while True:
            caller.send(math_reward(*caller.recv()))


def _end_with(parent: int) -> None:
    """End this process, which may be in a long computation, once its parent has."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class _Process:
    """Computes one reward at a time; started when needed, and again after it hung or died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.one_call = threading.Lock()

    def judge(self, response: str, label: str) -> float:
        """``math_reward``, or 0.0 without an answer in time."""
        with self.one_call:
            if self.process is None or self.process.poll() is not None:
                self.start()
            with suppress(EOFError, OSError):  # it died
                self.connection.send((response, label))
                if self.connection.poll(_SECONDS):
                    return float(self.connection.recv())
            self.end()
            return 0.0

    def start(self) -> None:
        self.connection, theirs = Pipe()
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from openrlhf_rpo.rewards.math_file import serve; "
            f"serve({theirs.fileno()}, {os.getpid()})"
        )
        with theirs:
            command = [sys.executable, "-c", program]
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=2)
        if not self.connection.poll(_LOADING):
            self.end()
            raise TimeoutError(f"the math reward's process did not load within {_LOADING:g} s")
        self.connection.recv()

    def end(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


_process = _Process()
