"""A command to examine, and what the doctor says of it."""

import json

import pytest

from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.launch.doctor.findings import FAIL


@pytest.fixture
def usual(tmp_path, monkeypatch) -> dict[str, object]:
    """Options of a good command: 16 questions, batches of 8."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return {
        "actor__model_name_or_path": model_dir("main"),
        "data__prompt_dataset": write_dataset("main", tmp_path / "data", 16, 4, seed=0)[0],
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__output_dir": tmp_path / "model",
        "rpo__device": "cpu",
    }


@pytest.fixture
def doctor(argv, usual, capsys):
    """The doctor's document on the usual command with changes."""

    def examine(**changes):
        status = main(["doctor", "--json", *argv(**usual | changes)])
        document = json.loads(capsys.readouterr().out)
        assert status == (document["status"] == FAIL)
        return document

    return examine
