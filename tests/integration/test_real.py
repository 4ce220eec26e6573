"""A pretrained model on third-party tasks: warmed up, evaluated and trained through the real commands."""

import json

import pytest

from lab import tasks
from lab.bench import main
from lab.real.bench import TUNED_ON
from openrlhf_rpo.cache.store import PathCache

pytestmark = pytest.mark.release
END = 2  # <|im_end|>


def test_smollm2_learns_a_chat_format_and_two_steps_of_verified_reuse_store_its_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tasks, "BASE", tmp_path / "base")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # as the benchmark would set it; a test process has 1
    assert main(["real", "--quick", "--out", str(tmp_path / "runs")]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["levels"][TUNED_ON]
    assert list(found["tuning"]) == ["verify_raft-8x2-lr3e-05"]
    [database] = tmp_path.glob(f"runs/tuning/{TUNED_ON}/*/seed0/checkpoints/rpo_cache.db")
    with PathCache.open_to_read(f"sqlite:///{database}") as cache:
        assert [record.step for record in cache.records()] == [1, 2]
        paths = [path for slots in cache.slots(cache.question_ids()).values() for path in slots.values()]
    assert paths and all(END not in path.token_ids[:-1] for path in paths)
