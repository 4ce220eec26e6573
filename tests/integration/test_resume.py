"""A run that is killed goes on from its last checkpoint as if it had never stopped: every row, every weight."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_rpo.testbed import model_dir
from openrlhf_rpo.upstream import STAGING

from .conftest import TrainingRun, run_training, run_until


def test_killed_after_a_commit_and_resumed_is_the_run_that_was_never_interrupted(
    tmp_path, finished_run, same_options
) -> None:
    """Killed right after step 5 was committed: the checkpoint is of step 4, and step 5 is taken back and repeated."""
    killed = run_until(tmp_path, 3, "step 5/6", **same_options)
    assert killed.status == -9
    with killed.cache() as cache:
        assert cache.latest_step >= 5
    (tmp_path / "checkpoints" / STAGING / "_actor" / "global_step6").mkdir(parents=True)  # half of one, never chosen
    resumed = run_training(tmp_path, 3, **same_options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 4" in resumed.output
    assert resumed.differences(finished_run) == []
    assert not (tmp_path / "checkpoints" / STAGING).exists()


def test_a_checkpoint_folder_alone_is_enough_on_another_machine(tmp_path, finished_run, same_options) -> None:
    """Data, model and checkpoint of step 4 lie elsewhere, and nothing else of the first run is there."""
    theirs, ours = finished_run.folder / "checkpoints" / "_actor", tmp_path / "checkpoints" / "_actor"
    shutil.copytree(theirs / "global_step4", ours / "global_step4")
    (ours / "latest").write_text("global_step4")
    model = shutil.copytree(model_dir("main"), tmp_path / "base")
    options = {**same_options, "actor__model_name_or_path": model}
    options["eval__dataset"] = shutil.copy(finished_run.folder / "data" / "heldout.jsonl", tmp_path)
    resumed = run_training(tmp_path, 3, **options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "restoring the copy beside the checkpoint" in resumed.output
    assert resumed.differences(finished_run) == []


def test_a_second_start_is_refused_and_so_are_other_options_and_more_episodes_go_on(
    tmp_path, finished_run, same_options
) -> None:
    finished_run.copy_checkpoints(tmp_path)

    def start(**options: object) -> TrainingRun:
        return run_training(tmp_path, 3, **{**same_options, **options})

    again = start()
    assert again.status == 2
    assert "already holds 6 steps" in again.output and "--ckpt.load_enable" in again.output
    other = start(ckpt__load_enable=True, rollout__temperature=0.7)
    assert other.status == 2
    assert "--rollout.temperature was 1.0, now 0.7" in other.output
    longer = start(ckpt__load_enable=True, train__num_episodes=3)
    assert longer.status == 0, longer.output[-3000:]
    assert "--train.num_episodes was 2, now 3: from here on the learning rate follows" in longer.output
    with longer.cache() as cache, finished_run.cache() as before:
        assert [r.step for r in cache.records()] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert cache.records()[:6] == before.records()


@pytest.mark.long
def test_kills_at_random_moments_change_nothing(tmp_path) -> None:
    """The short version of the benchmark: bulk initial cache, two episodes, checkpoints, evaluations."""
    program = Path(__file__).parents[2] / "benchmarks" / "kill_resume.py"
    command = [sys.executable, str(program), "--quick", "--kills", "2", "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["differences"], result["failed_resumes"]) == (0, 0, 0), done.stdout[-3000:]
    assert result["kills"] >= 1
