"""The math reward as plain OpenRLHF loads and calls it: as a file, in threads, where math-verify has no time limit."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "openrlhf_rpo" / "rewards" / "math_file.py"


@pytest.fixture
def module():
    spec = importlib.util.spec_from_file_location("reward_func", FILE)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    if made._process.process is not None:
        made._process.end()


def in_a_thread(module, *responses, label="42"):
    async def ask():
        calls = [asyncio.to_thread(module.reward_func, [f"q: {text}"], ["q: "], [label]) for text in responses]
        return [answer["rewards"] for answer in await asyncio.gather(*calls)]

    return asyncio.run(ask())


def test_calls_of_many_threads_get_their_own_rewards(module):
    texts = [rf"\boxed{{\frac{{{n}}}{{2}}}}" for n in (84, 82, 84, 86)]
    assert in_a_thread(module, *texts) == [1.0, 0.0, 1.0, 0.0]
    assert module.reward_func([f"q: {texts[0]}"], ["q: "], ["42"])["rewards"] == 1.0  # in the main thread


def test_a_large_power_ends_in_time(module):
    assert in_a_thread(module, r"\boxed{9^{9^{9}}}", r"\boxed{42.0}") == [0.0, 1.0]


def test_a_process_that_hangs_or_dies_is_replaced(module, monkeypatch):
    assert in_a_thread(module, r"\boxed{42.0}") == [1.0]
    hung = module._process.process
    os.kill(hung.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SECONDS", 0.2)
        assert in_a_thread(module, r"\boxed{42.0}") == [0.0]
    assert hung.returncode == -signal.SIGKILL
    assert in_a_thread(module, r"\boxed{42.0}") == [1.0]
    module._process.process.kill()
    module._process.process.wait()
    assert in_a_thread(module, r"\boxed{42.0}") == [1.0]


DIES = """
import os, signal, threading
from openrlhf_rpo.rewards.math_file import _process, reward_func

thread = threading.Thread(target=reward_func, args=(["42"], [""], ["42"]))
thread.start()
thread.join()
print(_process.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_ends_with_a_killed_parent():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", DIES], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    process = Path("/proc") / done.stdout.strip()
    end = time.monotonic() + 10
    while process.exists() and time.monotonic() < end and ") Z " not in (process / "stat").read_text():
        time.sleep(0.05)
    assert not process.exists() or ") Z " in (process / "stat").read_text()
