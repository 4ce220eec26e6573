"""Studies that train, through the real command: two steps a run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lab.attempt import title_of
from lab.testbed import write_dataset

from .conftest import training_command, watched

pytestmark = pytest.mark.release
SMALL = {
    "rollout__batch_size": 16,
    "train__batch_size": 64,
    "train__num_episodes": 2,
    "eval__steps": 1,
    "eval__n_samples_per_prompt": 2,
    "ckpt__save_steps": 2,
}


def study(name: str, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``openrlhf-rpo study NAME`` to its end; standard output and error apart."""
    data = write_dataset("main", out.parent / "data", 1, 8, seed=0)[1]
    training = training_command(out.parent, 4, **SMALL, eval__dataset=data)[3:]
    command = [sys.executable, "-m", "openrlhf_rpo.cli.main", "study", name, "--out", str(out), *words, "--", *training]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a tokens study of one L and the full path."""
    out = tmp_path_factory.mktemp("study") / "tokens.json"
    study("tokens", out, "--lengths", "fixed:50")
    return out


def test_capped_replay_generates_a_fraction_of_the_full_path_s_tokens(tokens: Path):
    rows = json.loads(tokens.read_text())["figures"]["variants"]
    assert rows["full path"]["tokens"]["mean"] > 150
    assert 0 < rows["fixed:50, factor:1"]["tokens"]["mean"] <= 50
    assert rows["fixed:50, factor:1"]["share"] < 1 / 3
    assert tokens.with_suffix(".png").stat().st_size > 1000


def test_every_step_of_both_trainers_has_its_figures(tokens: Path):
    for name, part in json.loads(tokens.read_text())["parts"].items():
        assert [step["step"] for step in part["steps"]] == [1, 2]
        assert all(step["grad_norm"] > 0 and step["seconds"]["step_total"] > 0 for step in part["steps"])
        assert [step for step, *_ in part["evaluations"]] == ([1, 2] if "full" in name else [0, 1, 2])


def test_the_full_path_is_plain_openrlhf(tokens: Path):
    [folder] = tokens.with_suffix("").glob("full*/seed0")
    assert not list(folder.rglob("rpo_cache.db")) and list(folder.rglob("model.safetensors"))


def test_the_same_command_trains_nothing_again(tokens: Path):
    logs = {log: log.stat().st_mtime_ns for log in tokens.parent.rglob("train.log")}
    before = json.loads(tokens.read_text())
    study("tokens", tokens, "--lengths", "fixed:50")
    assert {log: log.stat().st_mtime_ns for log in tokens.parent.rglob("train.log")} == logs and len(logs) == 2
    after = json.loads(tokens.read_text())
    assert (after["parts"], after["figures"]) == (before["parts"], before["figures"])


def test_ctrl_c_ends_a_study_and_its_training_in_words(tmp_path):
    """In a terminal the whole group gets the signal; here, as soon as a training has an engine."""
    command = [sys.executable, "-m", "openrlhf_rpo.cli.main", "study", "time", "--out", str(tmp_path / "time.json")]
    started: set[psutil.Process] = set()
    with watched(
        command,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    ) as process:
        while not any(title_of(p).startswith("ray::_RPOEngine") for p in started):
            assert process.poll() is None
            time.sleep(0.1)
            started.update(psutil.Process(process.pid).children(recursive=True))
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error.splitlines()[-2:] == ["interrupted", "The same command continues where this one stopped"]
    assert "Traceback" not in error
    assert [title for p in started if p.is_running() and (title := title_of(p))] == []  # a zombie has none


def test_an_interrupted_run_goes_on_from_its_checkpoint(tokens: Path):
    """As a study leaves one that was killed after its last checkpoint."""
    [folder] = tokens.with_suffix("").glob("fixed*/seed0")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"seconds": None}))
    part = json.loads(tokens.read_text())["parts"]["fixed:50, factor:1/seed0"]
    tokens.unlink()
    study("tokens", tokens, "--lengths", "fixed:50")
    assert "Resumed at step 2" in (folder / "train.log").read_text()
    again = json.loads(tokens.read_text())["parts"]["fixed:50, factor:1/seed0"]
    assert again["steps"] == part["steps"] and again["wall_seconds"] is None


def test_trials_go_through_ray_tune(tmp_path: Path):
    done = study("sweep", tmp_path / "sweep.json", "--alpha", "0.1", "--parallel", "1", "--json")
    trials = json.loads(done.stdout)["trials"]
    assert list(trials) == ["alpha 0.1"]
    assert all(0 < trial["accuracy"]["mean"] <= 1 for trial in trials.values())
    assert "1 at a time" in done.stderr
