"""Which finished runs a benchmark reports. Training itself: tests/integration/test_studies.py."""

import argparse
import json
from dataclasses import replace

import pytest

from lab import frontier
from lab.runs import FORMAT, StudyError
from openrlhf_rpo.errors import UsageError


def asked(tmp_path, **changes) -> argparse.Namespace:
    shape = {"arms": ["raft"], "lr": None, "steps": 2, "questions": 8, "evaluations": 1, "shape": ["4x2"]}
    return frontier.asked(out=tmp_path, levels=["main"], seeds=[0], finished=True, **shape | changes)


def finish(args: argparse.Namespace) -> None:
    """Leave what a finished run of these arguments leaves, without its figures."""
    [arm] = frontier.varied(args, "main")
    job = frontier.cell(args, "main", arm, 0).job
    job.run.folder.mkdir(parents=True)
    record = {"format": FORMAT, "words": job.words, "data": job.data, "seconds": 5.0}
    (job.run.folder / "run.json").write_text(json.dumps(record))


def test_no_run_is_reported_before_one_is_finished(tmp_path):
    with pytest.raises(UsageError, match="level main: no run is finished"):
        frontier.measure(asked(tmp_path))


def test_the_model_that_starts_is_what_was_evaluated_before_any_step():
    runs = [
        {"curve": [(0, 0.0, 0.5), (9, 1.0, 0.75)]},
        {"curve": [(7, 0.0, 0.25), (9, 1.0, 1.0)]},
        {"curve": [(9, 1.0, 1.0)]},
    ]
    assert frontier.base_accuracy(runs) == 0.375


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"held_out_after": 128}, r"--data\.prompt_dataset was .*, now .*-128/train\.jsonl"),
        ({"evaluations": 2}, r"--eval\.steps was 2, now 1"),
        ({"also": ["rpo.drafts=auto"]}, r"--rpo\.drafts was not given, now auto"),
    ],
)
def test_a_finished_run_of_other_questions_or_options_is_not_reported(tmp_path, changes, said):
    finish(asked(tmp_path))
    with pytest.raises(StudyError, match=said):
        frontier.measure(asked(tmp_path, **changes))


def test_a_finished_run_of_other_code_of_a_method_is_not_reported(tmp_path):
    method = tmp_path / "own.py"
    method.write_text("class Own: ...\n")
    changes = {"also": [f"rpo.method={method}:Own"]}
    finish(asked(tmp_path, **changes))
    method.write_text("class Own: other = True\n")
    with pytest.raises(StudyError, match=r"trained on other content of .*own\.py: "):
        frontier.measure(asked(tmp_path, **changes))


def test_a_finished_run_of_another_model_at_the_same_path_is_not_reported(tmp_path, monkeypatch):
    model = tmp_path / "base"
    monkeypatch.setattr(frontier, "task", lambda name, found=frontier.task: replace(found(name), model=model))
    model.mkdir()
    (model / "weights").write_text("one")
    finish(asked(tmp_path))
    (model / "weights").write_text("another")
    with pytest.raises(StudyError, match=r"trained on other content of .*base: "):
        frontier.measure(asked(tmp_path))
