"""``ray job submit`` to a real local head with its job server, as the README says."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf_rpo.platform.cpu import free_port

from .conftest import training_command

RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head with two CPUs; yields the address of its job server. Ended through its own process, not ``ray stop``."""
    dashboard = free_port()
    command = [RAY, "start", "--head", "--block", "--num-cpus=2", "--num-gpus=0", f"--port={free_port()}"]
    command += [f"--dashboard-port={dashboard}", "--include-dashboard=true", "--disable-usage-stats"]
    command += [f"--dashboard-agent-listen-port={free_port()}"]  # the usual one belongs to whichever Ray came first
    log = tmp_path_factory.mktemp("head") / "log.txt"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield f"http://127.0.0.1:{dashboard}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def submit(address: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    words = [RAY, "job", "submit", f"--address={address}", "--", *command]
    for _ in range(60):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        if not any(text in done.stdout for text in ("Failed to connect to Ray", "No available agent")):
            return done
        time.sleep(1)  # the job server takes a while after the head
    raise AssertionError(done.stdout)


def test_a_submitted_job_trains_and_one_that_asks_for_too_much_says_so(head, tmp_path) -> None:
    assert "RAY_ADDRESS" not in os.environ
    done = submit(head, training_command(tmp_path / "good", 1))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "step 1/1" in done.stdout
    assert (tmp_path / "good" / "model" / "model.safetensors").exists()

    greedy = submit(head, training_command(tmp_path / "greedy", 1, vllm__num_engines=3))
    assert greedy.returncode != 0
    assert "asks for 4 CPUs, the Ray cluster has 2" in greedy.stdout
    assert "--vllm.num_engines" in greedy.stdout
