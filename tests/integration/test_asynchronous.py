"""Steps that train while the next batch is generated: killed and resumed, with samples that the weight sync stops, on two
Ray nodes."""

import shutil

import pytest

from lab.invariants import violations

from .conftest import free_port, kill_one, ray_node, run_acting, run_training

ASYNC = {"train__async_enable": True, "rpo__drafts": "on"}


@pytest.mark.long
def test_a_checkpoint_holds_the_batch_that_was_ahead_and_a_resumed_run_repeats_every_bit(tmp_path, same_options) -> None:
    """The same again from the checkpoint of step 2, with the cache of step 4 beside it, as if it had been killed there.

    Steps of two updates. Only what the engines had counted of the batch that was ahead is gone.
    """
    options = {**same_options, **ASYNC, "train__batch_size": 8}
    whole = run_training(tmp_path / "whole", 2, **options)
    assert whole.status == 0, whole.output[-3000:]
    killed = tmp_path / "killed"
    whole.copy_checkpoints(killed)
    shutil.rmtree(killed / "checkpoints" / "_actor" / "global_step4")
    (killed / "checkpoints" / "_actor" / "latest").write_text("global_step2")
    resumed = run_training(killed, 2, **options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 2" in resumed.output
    assert [line for line in resumed.differences(whole) if "rpo/drafts/" not in line] == []
    with resumed.cache() as cache:
        ages = [record.metrics["rpo/policy_age_max"] for record in cache.records()]
        busy = [record.metrics["rpo/rollout_busy"] for record in cache.records()]
    assert ages == [0, 1, 1, 1] and all(0 <= share <= 1.01 for share in busy)


@pytest.mark.release
def test_partial_samples_go_on_with_new_weights_and_nothing_is_lost_when_an_engine_dies(
    tmp_path, same_options, monkeypatch
) -> None:
    """Two engines on a node of their own; one dies in step 3, and the run goes on from the checkpoint of step 2."""
    options = {**same_options, **ASYNC, "rpo__method": "verify", "rpo__replay__share": 0, "vllm__num_engines": 2}
    options |= {"train__partial_rollout_enable": True, "train__async_queue_size": 2, "train__full_determinism_enable": None}
    port = free_port()
    with (
        ray_node("--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"),
        ray_node(f"--address=127.0.0.1:{port}", "--num-cpus=2") as engines,
    ):
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        cut = run_acting(tmp_path, 3, {"step 3/6": lambda pid: kill_one("VLLM::EngineCore")(engines.pid)}, **options)
        assert cut.status == 1 and "error: a vLLM engine died" in cut.output, cut.output[-3000:]
        resumed = run_training(tmp_path, 3, **options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 2" in resumed.output
    assert violations(tmp_path) == []
    with resumed.cache() as cache:
        versions = [len(path.parts) for paths in cache.slots(cache.question_ids()).values() for path in paths.values()]
    assert max(versions) > 1
