"""``ray job submit`` to a real local head with its job server, as the README says."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openrlhf_rpo.platform.cpu import free_port

from .conftest import RAY, TrainingRun, ray_node, training_command

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
WHAT_IS_THERE = "import os, openrlhf_rpo; print('package', openrlhf_rpo.__file__, 'beside', sorted(os.listdir()))"


@pytest.fixture
def head() -> Iterator[str]:
    """A head with two CPUs; yields the address of its job server."""
    dashboard = free_port()
    words = ["--head", "--num-cpus=2", f"--port={free_port()}", f"--dashboard-port={dashboard}", "--include-dashboard=true"]
    with ray_node(*words):
        yield f"http://127.0.0.1:{dashboard}"


def submit(address: str, command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    words = [RAY, "job", "submit", f"--address={address}", *options, "--", *command]
    for _ in range(60):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
        if not any(text in done.stdout for text in ("Failed to connect to Ray", "No available agent")):
            return done
        time.sleep(1)  # the job server takes a while after the head
    raise AssertionError(done.stdout)


def test_a_job_trains_on_the_code_and_the_method_that_it_brings(head, tmp_path):
    """The method is the example of docs/methods.md."""
    assert "RAY_ADDRESS" not in os.environ
    [example] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "shortest.py").write_text(f"{WHAT_IS_THERE}\n{example}")
    own = {"rpo__method": f"{tmp_path}/shortest.py:Shortest", "rpo__redo__share": 0.5}
    done = submit(head, training_command(tmp_path / "good", 2, **own), f"--working-dir={ROOT}")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "step 2/2" in done.stdout
    found = next(line for line in done.stdout.splitlines() if line.startswith("package "))  # the driver's
    assert "/working_dir_files/" in found.split()[1]
    assert "'openrlhf_rpo'" in found and "'examples'" in found
    assert [name for name in (".git", ".venv", "runs", "tests", "docs") if f"'{name}'" in found] == []
    with TrainingRun(tmp_path / "good", 0, done.stdout).cache() as cache:
        first, second = cache.records()
    assert first.metrics["rpo/cache/shortest"] > 0 and second.metrics["rpo/prefix_tokens"] > 0
    assert (tmp_path / "good" / "model" / "model.safetensors").exists()
