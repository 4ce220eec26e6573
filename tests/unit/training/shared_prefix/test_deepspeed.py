"""Sharing under DeepSpeed: two data-parallel ranks, every ZeRO stage."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("ranks.py")
STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], dict[str, torch.Tensor]]:
    """(stage, shared?) -> log-probs of rank 0 before each of two optimizer steps, and the parameters after them."""
    folder = tmp_path_factory.mktemp("ranks")
    env = os.environ | {"LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM)]
    options = {"env": env, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ranks = [subprocess.Popen([*command, str(rank), str(folder)], **options) for rank in range(2)]
    for rank in ranks:
        output, _ = rank.communicate(timeout=500)
        assert rank.returncode == 0, output[-3000:]
    return torch.load(folder / "results.pt")


@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_that_share_take_the_steps_of_the_plain_path(results, stage) -> None:
    plain, shared = results[stage, False], results[stage, True]
    torch.testing.assert_close(shared["log_probs"], plain["log_probs"], atol=1e-5, rtol=0)
    torch.testing.assert_close(shared["parameters"], plain["parameters"], atol=2e-5, rtol=0)
    first, second = plain["log_probs"]
    assert (first - second).abs().max() > 0.1  # the steps were taken


@pytest.mark.parametrize("stage", STAGES[1:])
def test_partitioning_changes_no_step(results, stage) -> None:
    torch.testing.assert_close(results[stage, True]["parameters"], results[0, True]["parameters"], atol=2e-5, rtol=0)
