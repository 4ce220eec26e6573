"""The real command on one GPU: policy, engine and reference share it (--train.colocate_all).

What is the GPU's own: flash-attention or FlexAttention in the policy, weights handed to the engine through CUDA, engines and
optimizer that sleep in turns. The figures of the steps are in the cache, as on a CPU.
"""

import math
import shutil
from pathlib import Path

import pytest
from integration.conftest import TrainingRun, run_training
from safetensors.torch import load_file

from lab.testbed import model_dir, write_dataset

ONE_GPU = {
    "train__colocate_all": True,
    "vllm__gpu_memory_utilization": 0.3,
    "vllm__enforce_eager": True,  # no minute for graphs of a model this small
    "rpo__shared_prefix": "on",  # stops the run where anything falls back to whole rows
    "actor__adam__lr": 1e-3,  # moves the policy so far in a step that engines without the new weights would show
    "ckpt__save_steps": 2,
}
REFERENCE = {"algo__kl__init_coef": 0.01}
SLEEPING = {"vllm__enable_sleep": True, "ds__enable_sleep": True}
STEPS = 4
MAX_GAP = 0.05
"""Mean |log pi_train - log pi_rollout| a token: what bfloat16 in two implementations makes of one set of weights."""


def figures(run: TrainingRun) -> list[dict[str, float]]:
    """The metrics of every step, all finite."""
    assert run.status == 0, run.output[-5000:]
    with run.cache() as cache:
        records = [record.metrics for record in cache.records()]
    assert all(math.isfinite(value) for record in records for value in record.values())
    return records


def gaps(run: TrainingRun) -> list[float]:
    return [record["rpo/rollout_log_prob_gap"] for record in figures(run)]


def visited_first(run: TrainingRun) -> set[str]:
    """The questions of step 1."""
    with run.cache() as cache:
        return {visit.question_id for visit in cache.visits_after(0) if visit.step == 1}


@pytest.fixture(scope="module")
def colocated(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    """Four steps with a reference, evaluations and checkpoints."""
    folder = tmp_path_factory.mktemp("colocated")
    held_out = write_dataset("main", folder / "data", 1, 8, seed=0)[1]
    return run_training(folder, STEPS, **ONE_GPU, **REFERENCE, eval__dataset=held_out, eval__steps=2)


def test_a_run_with_everything_on_one_gpu_trains_evaluates_and_saves(colocated) -> None:
    assert len(figures(colocated)) == STEPS
    assert colocated.output.count("evaluation at step") == 3
    before, after = (load_file(Path(d) / "model.safetensors") for d in (model_dir("main"), colocated.folder / "model"))
    moved = max((after[name].float() - before[name].float()).abs().max().item() for name in before)
    assert moved > 2e-3  # two steps of Adam at this rate; what bfloat16 rounds off is a tenth of it


def test_engines_sample_from_the_weights_that_were_trained(colocated) -> None:
    """Through CUDA's shared memory, since policy and engine are on one device."""
    assert max(gaps(colocated)) < MAX_GAP


def test_groups_share_their_prefix_in_policy_and_reference(colocated) -> None:
    [*lines] = [line for line in colocated.output.splitlines() if "Shared prefix, " in line]
    assert len(lines) == 2 and all(": on: " in line for line in lines)  # policy and reference


def test_engines_and_optimizer_that_sleep_in_turns_train_and_go_on_from_a_checkpoint(tmp_path) -> None:
    """A second command takes the first one's folder from its middle: weights come back to engines that wake up."""
    first = run_training(tmp_path, STEPS, **ONE_GPU, **SLEEPING)
    assert len(figures(first)) == STEPS and max(gaps(first)) < MAX_GAP
    actor = tmp_path / "checkpoints" / "_actor"
    shutil.rmtree(actor / f"global_step{STEPS}")
    (actor / "latest").write_text("global_step2")
    second = run_training(tmp_path, STEPS, **ONE_GPU, **SLEEPING, ckpt__load_enable=True)
    assert "Resumed at step 2" in second.output
    assert len(figures(second)) == STEPS and max(gaps(second)) < MAX_GAP


def test_sharing_and_whole_rows_start_with_the_same_figures(colocated, tmp_path) -> None:
    """Step 1 comes before any training: the same questions, the same samples, and log-probs as far from the engine's.

    Every request has a seed of its own. What may still differ is a token that bfloat16 rounds the other way when vLLM
    batches otherwise, and the end of that sample.
    """
    data = colocated.folder / "data" / "train.jsonl"
    options = {**ONE_GPU, **REFERENCE, "rpo__shared_prefix": "off", "data__prompt_dataset": data}
    whole = run_training(tmp_path, STEPS, **options)
    off, on = figures(whole)[0], figures(colocated)[0]
    assert visited_first(whole) == visited_first(colocated)
    assert off["rpo/score"] == pytest.approx(on["rpo/score"], abs=0.2)
    for name in ("rpo/generated_tokens", "rpo/path_length"):
        assert off[name] == pytest.approx(on[name], rel=0.1), name
    assert off["rpo/rollout_log_prob_gap"] == pytest.approx(on["rpo/rollout_log_prob_gap"], rel=0.5)
