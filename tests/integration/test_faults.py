"""What breaks under a run: it ends within a minute, says what died and how to go on, and nothing committed is lost."""

import fcntl
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from openrlhf_rpo.upstream import STAGING

from .conftest import TrainingRun, kill_one, run_acting, run_training


def last_words(run: TrainingRun) -> str:
    assert run.status == 1, run.output[-3000:]
    assert run.seconds < 60
    return run.output[run.output.rindex("error: ") :]


def test_a_reward_worker_is_replaced_and_dead_engines_and_policies_end_the_run_which_goes_on_exactly(
    tmp_path, finished_run, same_options
) -> None:
    acts = {"step 1/6": kill_one("reward_worker"), "step 3/6": kill_one("VLLM::EngineCore")}
    first = run_acting(tmp_path, 3, acts, **same_options)
    assert "step 2/6" in first.output
    said = last_words(first)
    assert said.startswith("error: a vLLM engine died")
    assert f"3 committed steps in {tmp_path}/checkpoints/rpo_cache.db" in said and "checkpoint: global_step2" in said
    assert "the same command with --ckpt.load_enable; what came after step 2 is run again" in said
    second = run_acting(tmp_path, 3, {"Resumed at step 2": kill_one("PolicyActor")}, **same_options, ckpt__load_enable=True)
    assert last_words(second).startswith("error: a process of the policy (actor) died")
    third = run_training(tmp_path, 3, **same_options, ckpt__load_enable=True)
    assert third.status == 0, third.output[-3000:]
    assert third.differences(finished_run) == []


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 26 MB at the run's checkpoints, where two of them (9 MB each) have room; ``grow`` gives more."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=26m", "tmpfs", folder]).returncode:
        pytest.skip("needs the right to mount a file system")
    yield lambda: subprocess.run(["mount", "-o", "remount,size=200m", folder], check=True)
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(tmp_path, finished_run, same_options, small_disk) -> None:
    full = run_training(tmp_path, 3, **same_options)
    said = full.output[full.output.rindex("error: ") :]
    assert full.status == 1
    assert not (tmp_path / "checkpoints" / STAGING).exists()  # what was half written gives its space back
    assert said.startswith("error: the disk is full")
    assert "checkpoint: best_global_step3" in said or "checkpoint: global_step2" in said
    small_disk()
    resumed = run_training(tmp_path, 3, **same_options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert resumed.differences(finished_run) == []


# ── The database, before a resume ──


@pytest.fixture
def stopped(tmp_path: Path, finished_run: TrainingRun) -> Path:
    """A copy of a run's checkpoints, to damage; its database."""
    finished_run.copy_checkpoints(tmp_path)
    return tmp_path / "checkpoints" / "rpo_cache.db"


def refused(folder: Path, options: dict[str, object]) -> str:
    run = run_training(folder, 3, **options, ckpt__load_enable=True)
    assert run.status == 2, run.output[-3000:]
    assert "Ray" not in run.output  # before anything starts
    return run.output


def damage_truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def damage_flipped(file: Path) -> None:
    """One bit of the header of the first page of rows."""
    page = sqlite3.connect(file).execute("SELECT rootpage FROM sqlite_master WHERE name = 'paths'").fetchone()[0]
    data = bytearray(file.read_bytes())
    data[(page - 1) * 4096 + 3] ^= 0x40
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [damage_truncated, damage_flipped])
def test_a_damaged_database_is_refused_with_the_copy_that_takes_its_place(tmp_path, stopped, same_options, damage) -> None:
    damage(stopped)
    said = refused(tmp_path, same_options)
    assert f"the copy {tmp_path}/checkpoints/_actor/global_step6/rpo_cache.db takes its place" in said


def test_a_database_that_another_process_holds_is_refused_and_the_process_named(tmp_path, stopped, same_options) -> None:
    with (stopped.parent / "rpo_cache.db.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate()
        lock.write("4711 on elsewhere")
        lock.flush()
        assert "is in use by process 4711 on elsewhere" in refused(tmp_path, same_options)
