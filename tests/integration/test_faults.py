"""A run in which something breaks ends within a minute, says what died and how to resume, and loses nothing committed."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab.compare import checkpoint_differences
from openrlhf_rpo.upstream import STAGING

from .conftest import run_acting, run_training

pytestmark = pytest.mark.release


def test_a_run_whose_machine_is_taken_away_says_what_is_safe(tmp_path, finished_run, same_options) -> None:
    """A scheduler sends TERM first."""
    finished_run.copy_checkpoints(tmp_path)
    acts = {"Resumed at step 6": lambda pid: os.kill(pid, signal.SIGTERM)}
    ended = run_acting(tmp_path, 3, acts, **{**same_options, "train__num_episodes": 3}, ckpt__load_enable=True)
    assert ended.status == 130, ended.output[-3000:]
    assert ended.seconds < 60
    assert "checkpoint: global_step6" in ended.output[ended.output.rindex("interrupted\n") :]
    assert "Traceback" not in ended.output


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 26 MB at the run's checkpoints, where two of them (9 MB each) have room."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=26m", "tmpfs", folder]).returncode:
        pytest.skip("needs the right to mount a file system")
    yield
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(tmp_path, finished_run, same_options, small_disk) -> None:
    full = run_training(tmp_path, 3, **same_options)
    said = full.output[full.output.rindex("error: ") :]
    assert full.status == 1
    assert not list((tmp_path / "checkpoints" / STAGING).iterdir())  # what was half written gives its space back
    assert said.startswith("error: the disk is full")
    assert "checkpoint: best_global_step3" in said or "checkpoint: global_step2" in said
    left, whole = (run.folder / "checkpoints" / "_actor" for run in (full, finished_run))
    assert (left / (left / "latest").read_text()).is_dir()
    assert checkpoint_differences(left / "global_step2", whole / "global_step2") == []
