"""A killed run resumes from its last checkpoint as if it had never stopped: every row, every weight."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.upstream import STAGING

from .conftest import refused, run_training, run_until, training_command


def test_killed_after_a_commit_and_resumed_is_the_run_that_was_never_interrupted(
    tmp_path, finished_run, same_options
) -> None:
    """Killed right after step 5 was committed: the checkpoint is of step 4, and step 5 is taken back and repeated.

    What is resumed drafts from the cache, what was never interrupted does not: drafts change no bit. Nor does asynchronous
    training with a queue of none.
    """
    same_options = same_options | {"train__async_enable": True, "train__async_queue_size": 0}
    killed = run_until(tmp_path, 3, "step 5/6", **same_options)
    assert killed.status == -9
    with killed.cache() as cache:
        assert cache.latest_step >= 5
    half = tmp_path / "checkpoints" / STAGING / "global_step6" / "_actor" / "global_step6"  # never chosen
    half.mkdir(parents=True)
    resumed = run_training(tmp_path, 3, **same_options, ckpt__load_enable=True, rpo__drafts="on")
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 4" in resumed.output
    other = ("metrics: rpo/drafts/", "train.async_")
    assert [line for line in resumed.differences(finished_run) if not any(part in line for part in other)] == []
    with resumed.cache() as cache:
        assert all(record.metrics["rpo/drafts/accepted"] > 0 for record in cache.records()[4:])
    assert not list((tmp_path / "checkpoints" / STAGING).iterdir())


@pytest.mark.release
def test_groups_that_wait_are_those_of_the_checkpoint(tmp_path, same_options) -> None:
    """A run with dynamic sampling and --rpo.tail, and the same again from its checkpoint of step 2,
    with the cache of step 4 beside it, as if it had been killed before the second checkpoint."""
    asked = {"rpo__tail": 0.6, "algo__dynamic_filtering_enable": True}
    options = {**same_options, **asked, "rpo__method": "off", "eval__steps": -1}
    whole = run_training(tmp_path / "whole", 2, **options)
    assert whole.status == 0, whole.output[-3000:]
    killed = tmp_path / "killed"
    whole.copy_checkpoints(killed)
    shutil.rmtree(killed / "checkpoints" / "_actor" / "global_step4")
    (killed / "checkpoints" / "_actor" / "latest").write_text("global_step2")
    resumed = run_training(killed, 2, **options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 2" in resumed.output and resumed.differences(whole) == []
    with resumed.cache() as cache:
        assert all(record.metrics["rpo/groups_waiting"] > 0 for record in cache.records()[:3])
        assert "unfinished" in {visit.asked for visit in cache.visits_after(2)}


# ── Longer ──


@pytest.mark.release
def test_more_episodes_go_on_where_a_run_had_ended(tmp_path, finished_run, same_options) -> None:
    finished_run.copy_checkpoints(tmp_path)
    longer = run_training(tmp_path, 3, **{**same_options, "train__num_episodes": 3}, ckpt__load_enable=True)
    assert longer.status == 0, longer.output[-3000:]
    assert "--train.num_episodes was 2, now 3: from here on the learning rate follows" in longer.output
    with longer.cache() as cache, finished_run.cache() as before:
        assert [r.step for r in cache.records()] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert cache.records()[:6] == before.records()


@pytest.mark.release
def test_a_run_of_the_former_options_goes_on_as_the_method_that_it_was(tmp_path, monkeypatch, capsys) -> None:
    """Two steps that the code before `--rpo.method` wrote (its default was verified reuse), and two more of today's."""
    archive = Path(__file__).parent / "data" / "former_run.tar.xz"
    # extractall() has no filter in 3.11.2
    subprocess.run([sys.executable, "-m", "tarfile", "-e", archive, tmp_path], check=True)
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)  # relative, as they were given
    options = {
        "actor__model_name_or_path": "model",
        "data__prompt_dataset": "questions.jsonl",
        "data__max_len": 64,
        "rollout__batch_size": 2,
        "rollout__n_samples_per_prompt": 2,
        "rollout__micro_batch_size": 4,
        "rollout__max_new_tokens": 24,
        "train__batch_size": 4,
        "train__micro_batch_size": 4,
        "train__num_episodes": 2,
        "actor__adam__lr": None,
        "ckpt__save_steps": 2,
        "ckpt__load_enable": True,
    }
    before = PathCache.open(f"sqlite:///{tmp_path}/checkpoints/rpo_cache.db")
    with before:
        records = before.records()
    assert '--rpo.method was "verify", now "rpo"' in refused(training_command(tmp_path, 2, **options), capsys)
    options["rpo__method"] = "verify"
    assert "--rpo.replay.share was 0.85, now 0.75" in refused(training_command(tmp_path, 2, **options), capsys)
    resumed = run_training(tmp_path, 2, **options, rpo__replay__share=0.85)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 2" in resumed.output
    with resumed.cache() as cache:
        assert cache.records()[:2] == records and [r.step for r in cache.records()] == [1, 2, 3, 4]
        assert cache.records()[-1].metrics["rpo/prefix_tokens"] > 0  # what the former code stored is continued
