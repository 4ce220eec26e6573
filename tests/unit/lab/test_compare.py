"""Two runs are equal to the last bit but for times, or every difference is named."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lab.compare import differences
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.types import StepRecord


def build(folder: Path, score=0.5, seconds=1.0, weight=1.0, momentum=2.0) -> tuple[Path, Path]:
    """A run's checkpoints and model."""
    checkpoints, model = folder / "checkpoints", folder / "model"
    last = checkpoints / "_actor" / "global_step1"
    last.mkdir(parents=True)
    model.mkdir()
    (last.parent / "latest").write_text(last.name)
    with PathCache.open(f"sqlite:///{checkpoints}/rpo_cache.db") as cache:
        cache.mark_initialised()
        cache.commit_step(
            StepRecord(1, 0, 4, {"rpo/score": score, "timing/rollout": seconds, "rpo/train_busy": seconds / 10}), []
        )
        cache.record_evaluation(1, {"pass1": 0.5, "eval_seconds": seconds})
    save_file({"w": torch.tensor([weight, 2.0])}, model / "model.safetensors")
    state = {"optimizer": {"exp_avg": [torch.tensor([momentum])], "step": 1}, "ds_config": {"path": str(folder)}}
    torch.save(state, last / "zero_states.pt")
    return checkpoints, model


def found(tmp_path, **changes) -> list[str]:
    return differences(*build(tmp_path / "a"), *build(tmp_path / "b", **changes))


def test_runs_that_took_other_times_are_equal(tmp_path):
    assert found(tmp_path, seconds=9.0) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"score": 0.5 + 2**-52}, "database steps [1] metrics rpo/score"),
        ({"weight": 1.0 + 2**-23}, "final weights w: tensors differ"),
        ({"momentum": 2.0 + 2**-22}, "last checkpoint zero_states.pt optimizer exp_avg[0]: tensors differ"),
    ],
)
def test_the_last_bit_of_a_row_a_weight_or_the_optimizer_is_seen(tmp_path, change, named):
    (difference,) = found(tmp_path, **change)
    assert difference.startswith(named)


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [
        ([], [7, 9], "0 and 2 items"),
        ((1, 2), (1, 3), "'2' and '3'"),
        (np.array([1, 2]), np.array([1, 4]), "'2' and '4'"),
        ({1}, {2}, "{1} and {2}"),
        (datetime(2026, 1, 1), datetime(2026, 1, 2), "2026-01-01"),
        (torch.float32, torch.bfloat16, "torch.float32 and torch.bfloat16"),
    ],
)
def test_values_of_any_kind_in_a_checkpoint_are_compared(tmp_path, a, b, named):
    folders = build(tmp_path / "a"), build(tmp_path / "b")
    for (checkpoints, _), value in zip(folders, (a, b), strict=True):
        torch.save({"postponed_prompts": value}, checkpoints / "_actor" / "global_step1" / "states.pt")
    (difference,) = differences(*folders[0], *folders[1])
    assert difference.startswith("last checkpoint states.pt postponed_prompts") and named in difference


def test_a_critics_checkpoint_is_compared_too_and_no_file_is_no_agreement(tmp_path):
    folders = build(tmp_path / "a"), build(tmp_path / "b")
    for (checkpoints, _), value in zip(folders, (1, 2), strict=True):
        critic = checkpoints / "_critic" / "global_step1"
        critic.mkdir(parents=True)
        (critic.parent / "latest").write_text(critic.name)
        torch.save({"value_head": value}, critic / "states.pt")
    assert differences(*folders[0], *folders[1]) == ["last checkpoint states.pt value_head: '1' and '2'"]
    for _, model in folders:
        (model / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="safetensors"):
        differences(*folders[0], *folders[1])


def test_a_row_that_is_missing_is_named(tmp_path):
    a, b = build(tmp_path / "a"), build(tmp_path / "b")
    with PathCache.open(f"sqlite:///{b[0]}/rpo_cache.db") as cache:
        cache.rollback(0)
    assert any(d.startswith("database steps: [1] is only in the first") for d in differences(*a, *b))
