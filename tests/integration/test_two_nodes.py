"""Two Ray nodes on one machine: controller and database on the driver's; the other dies, or cannot see its files."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from lab.attempt import title_of
from lab.testbed import model_dir
from openrlhf_rpo.platform.cpu import free_port

from .conftest import kill_tree, ray_node, run_acting, run_training

pytestmark = pytest.mark.release
STEP_2 = "checkpoints/_actor/global_step2"
TWO_ENGINES = {"vllm__num_engines": 2}  # Ray packs them on the node that has room for both


@contextmanager
def head(cpus: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, psutil.Process]]:
    """The driver's node: its address, which the commands find in RAY_ADDRESS, and its process."""
    port = free_port()
    with ray_node("--head", f"--port={port}", f"--num-cpus={cpus}", "--include-dashboard=false") as process:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}", psutil.Process(process.pid)


def actors_on(node: psutil.Process) -> list[str]:
    """Names of the run's actors among the processes of a node, without what they are doing."""
    titles = [title_of(p).split(".")[0].strip() for p in node.children(recursive=True)]
    return sorted(title for title in titles if title.startswith("ray::_RPO"))


def test_a_run_outlives_its_engines_node_and_goes_on_elsewhere(finished_run, same_options, tmp_path, monkeypatch) -> None:
    """The node dies after step 3. The run goes on from checkpoint 2 with a new one, and where data, model and the
    checkpoint's folder lie elsewhere and nothing else is there.

    The command's folder is not the nodes': its relative paths mean the same everywhere.
    """
    begun, elsewhere = tmp_path / "begun", tmp_path / "elsewhere"
    options = {**same_options, **TWO_ENGINES, "ckpt__path": "checkpoints", "ckpt__output_dir": "model"}
    places = {}
    with head(1, monkeypatch) as (address, driver):
        with ray_node(f"--address={address}", "--num-cpus=2") as engines:

            def die(pid: int) -> None:
                places.update(here=actors_on(driver), there=actors_on(psutil.Process(engines.pid)))
                kill_tree(engines.pid)

            begun.mkdir()
            monkeypatch.chdir(begun)
            cut = run_acting(begun, 3, {"step 3/6": die}, **options, rpo__cache__url="sqlite:///disk/cache.db")
        expected = {"here": ["ray::_RPOPolicyActor", "ray::_RPOTrainer"], "there": ["ray::_RPOEngine"] * 2}
        assert places == expected, cut.output[-3000:]
        said = cut.last_words()
        assert said.startswith("error: a vLLM engine died with its node ("), said
        assert f"committed steps in {begun}/disk/cache.db; checkpoint: global_step2 below {begun}/checkpoints" in said

        left = Path(shutil.copytree(begun / "checkpoints" / "_actor" / "global_step2", elsewhere / STEP_2))
        left.with_name("latest").write_text("global_step2")
        again = {**same_options, "ckpt__load_enable": True}
        again["actor__model_name_or_path"] = shutil.copytree(model_dir("main"), tmp_path / "base")
        again["eval__dataset"] = shutil.copy(finished_run.folder / "data" / "heldout.jsonl", tmp_path)
        with ray_node(f"--address={address}", "--num-cpus=1"):
            resumed = run_training(elsewhere, 3, **again)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "restoring the copy beside the checkpoint" in resumed.output
    assert "Resumed at step 2" in resumed.output
    assert resumed.differences(finished_run) == []


@pytest.mark.parametrize(("flag", "name"), [("--ckpt.path", "checkpoints"), ("--ckpt.output_dir", "model")])
def test_a_policy_that_does_not_see_a_folder_ends_the_run_before_the_cache_is_rolled_back(
    finished_run, same_options, tmp_path, monkeypatch, flag, name
) -> None:
    """On its node another file system is mounted where the checkpoints are, or the model is to be: it would start from the
    base model, or keep the model there."""
    if os.geteuid() or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("needs the right to mount a file system")
    finished_run.copy_checkpoints(tmp_path)
    (tmp_path / name).mkdir(exist_ok=True)
    elsewhere = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', tmp_path / name]
    with head(2, monkeypatch) as (address, _), ray_node(f"--address={address}", "--num-cpus=1", inside=elsewhere):
        run = run_training(tmp_path, 3, **same_options, **TWO_ENGINES, ckpt__load_enable=True)
    assert run.status == 1, run.output[-3000:]
    said = run.output[run.output.rindex("\nerror: ") + 1 :]
    assert f"{flag} {tmp_path}/{name} is another folder on " in said, said
    with run.cache() as cache:
        assert cache.latest_step == 6
