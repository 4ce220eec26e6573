"""Hostile inputs to real commands. Each must be refused: an error of ours, status 1, soon, and without a trace."""

import hashlib
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cli.main import main
from tests.unit.conftest import build_argv, no_cluster  # noqa: F401 (an autouse fixture)

SECONDS = 10
BYTES = 2**30


@pytest.fixture(scope="session")
def testbed(tmp_path_factory):
    """Options of a training command that works: 16 questions, batches of 8."""
    folder = tmp_path_factory.mktemp("testbed")
    train, held_out = write_dataset("main", folder, 16, 4, seed=0)
    return {
        "actor__model_name_or_path": model_dir("main"),
        "data__prompt_dataset": train,
        "eval__dataset": held_out,
        "rpo__device": "cpu",
    }


@pytest.fixture(autouse=True)
def bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may keep bytecode, whatever this machine says: nothing is left beside a user's file."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    """A command that goes on as far as Ray was not refused in time."""

    def reached(*_):
        raise AssertionError("the command was not refused: it would connect to Ray now")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("openrlhf_rpo.launch.cluster.connect", reached)


@pytest.fixture
def refused(tmp_path, capfd) -> Callable[..., str]:
    """``refused("cache", "info", file)``: what the command says. Fails unless it is refused as the module says.

    No file below ``tmp_path`` may be written, changed or removed.
    """

    def attack(*words: object) -> str:
        capfd.readouterr()
        forget_peak()
        files, peak, start = contents(tmp_path), peak_bytes(), time.monotonic()
        status = main([str(word) for word in words])
        seconds, grown = time.monotonic() - start, peak_bytes() - peak
        out, said = capfd.readouterr()
        assert status == 1 and "error: " in said and "Traceback" not in said, (status, said)
        bars, _, message = said.partition("error: ")
        assert not steering(out + bars.replace("\r", "") + message), "a terminal could be steered"
        assert seconds < SECONDS and grown < BYTES, (seconds, grown)
        assert contents(tmp_path) == files
        return said[said.rindex("error: ") :]

    return attack


@pytest.fixture
def train(refused, testbed, tmp_path) -> Callable[..., str]:
    """``train(rollout__top_p=2)``: what the training command says when it is refused."""
    places = {"ckpt__path": tmp_path / "checkpoints", "ckpt__output_dir": tmp_path / "model"}

    def attack(**changes: object) -> str:
        return refused("train", *build_argv(**testbed | places | changes))

    return attack


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def steering(text: str) -> set[str]:
    """The characters in it that could control a terminal."""
    return {c for c in text if c not in "\n\t" and unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp"}}


def forget_peak() -> None:
    """The most memory is counted from here on, so that an earlier test's does not hide a later one's."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that this process has had since ``forget_peak``."""
    [kib] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(kib) * 1024
