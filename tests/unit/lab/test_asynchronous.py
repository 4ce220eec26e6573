"""Runs that differ in one thing are compared with the baseline of their own seed."""

import argparse
import json

import pytest
from unit.lab.studies.made import made_figures, made_run, made_step

from lab import asynchronous, frontier, uses
from lab.arms import PACED, PACES, arms
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.options import parse

ABOUT = {"date": "2026-01-01", "command": "c", "evaluation": "e", "versions": {}}
ABOUT |= {"hardware": {"gpus": [], "cores": 2, "machine": "m", "memory_gib": 1.0}}


def arguments(module, tmp_path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    parser.set_defaults(quick=False, report=tmp_path / "report")
    return parser.parse_args(["--out", str(tmp_path), *words])


def overlap_of(name: str, seed: int) -> dict[str, float]:
    """Of an asynchronous run the busy share grows with step and seed; a synchronous one has none."""
    if "async" not in name:
        return made_run(*(made_step(step, 1.0, overlap={"policy_age": 0.0}) for step in (1, 2))).overlap()
    shares = [{"rollout_busy": 0.25 * (step + seed), "policy_age": 1.0} for step in (1, 2)]
    return made_run(*(made_step(step, 1.0, overlap=share) for step, share in enumerate(shares, 1))).overlap()


def summary(*runs: tuple[float, int, float], name: str = "off_sync", quiet: bool = True) -> dict:
    """The frontier's figures of an arm; of each seed seconds, generated tokens, and accuracy at the end."""
    results = [
        made_figures(seed, (0, 0.0, 0.25), (tokens, seconds, accuracy), quiet=quiet, overlap=overlap_of(name, seed))
        for seed, (seconds, tokens, accuracy) in enumerate(runs)
    ]
    return frontier.summarize(results, arms("main")[name])


def figures() -> dict:
    """Two seeds, the third of the synchronous arm alone."""
    sync = summary((100.0, 1000, 0.5), (80.0, 1000, 0.5), (1.0, 1, 1.0))
    ahead = summary((50.0, 1100, 0.75), (80.0, 900, 0.25), name="off_async")
    return ABOUT | {"levels": {"main": {"base": 0.25, "off_sync": sync, "off_async": ahead}}}


def test_an_arm_is_compared_with_the_synchronous_one_of_its_method_and_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(frontier, "measure", lambda args: figures())
    args = arguments(asynchronous, tmp_path, "--methods", "off", "--paces", "async", "--levels", "main")
    found = asynchronous.run(args)["levels"]["main"]
    # 100 / 50 and 80 / 80, 1100 / 1000 and 900 / 1000; at 1000 tokens 0.25 + 0.5 * 10 / 11 less 0.5, at 900 0.25 less
    # 0.25 + 0.25 * 9 / 10; median, smallest, largest
    assert found["off_async"]["against"] == {
        "times_faster": [1.5, 1.0, 2.0],
        "tokens": [1.0, 0.9, 1.1],
        "accuracy": [-0.0102, -0.225, 0.2045],
    }
    assert found["off_sync"]["against"]["times_faster"] == [1.0, 1.0, 1.0]
    # Means over two steps, then over seeds 0 and 1, whose shares are 0.25 and 0.5, 0.5 and 0.75.
    assert found["off_async"]["overlap"] == {"rollout_busy": 0.5, "policy_age": 1.0}
    assert found["off_sync"]["overlap"] == {"policy_age": 0.0}
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Asynchronous against synchronous training (2026-01-01)")
    assert "| off_async | 1.50 (1.00 to 2.00) | 1.00 (0.90 to 1.10) | -0.01 (-0.23 to 0.20) | 0.50 | - | 1.00 | - |" in text
    assert json.loads((tmp_path / "report.json").read_text())["levels"]["main"] == json.loads(json.dumps(found))


def test_seconds_of_runs_that_shared_the_machine_are_not_compared(tmp_path, monkeypatch):
    busy = figures()
    busy["levels"]["main"]["off_async"] = summary((50.0, 1000, 0.75), name="off_async", quiet=False)
    monkeypatch.setattr(frontier, "measure", lambda args: busy)
    args = arguments(asynchronous, tmp_path, "--methods", "off", "--paces", "async", "--levels", "main")
    found = asynchronous.run(args)["levels"]["main"]["off_async"]
    assert found["against"] == {"times_faster": None, "tokens": [1.0, 1.0, 1.0], "accuracy": [0.25, 0.25, 0.25]}
    assert "| off_async | - | 1.00 (1.00 to 1.00) | 0.25 (0.25 to 0.25) | - |" in (tmp_path / "report.md").read_text()


def test_uses_are_compared_with_full_answers_alone(tmp_path, monkeypatch):
    alone, tail = summary((100.0, 1000, 0.5)), summary((50.0, 500, 0.25))
    made = ABOUT | {"levels": {"hard": {"base": 0.1, "grpo_alone": alone, "grpo_tail": tail}}}
    monkeypatch.setattr(frontier, "measure", lambda args: made)
    found = uses.run(arguments(uses, tmp_path, "--baselines", "grpo", "--uses", "tail"))["levels"]["hard"]
    assert {name: middle for name, (middle, _, _) in found["grpo_tail"]["against"].items()} == {
        "seconds": 0.5,
        "tokens": 0.5,
        "length": 1.0,
        "accuracy": -0.25,
    }
    assert "| grpo_tail | 0.50 (0.50 to 0.50) |" in (tmp_path / "report.md").read_text()


def test_an_arm_whose_baseline_is_not_finished_is_in_no_comparison(tmp_path, monkeypatch):
    made = ABOUT | {"levels": {"hard": {"base": 0.1, "grpo_tail": summary((50.0, 500, 0.25))}}}
    monkeypatch.setattr(frontier, "measure", lambda args: made)
    found = uses.run(arguments(uses, tmp_path))["levels"]["hard"]
    assert found["grpo_tail"]["against"] == {}
    assert "| grpo_tail | 0.50" not in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("method", PACED)
def test_training_accepts_every_method_at_every_pace(tmp_path, method, pace):
    args = arguments(asynchronous, tmp_path)
    words = frontier.cell(args, "main", arms("main")[f"{method}_{pace}"], seed=0).job.words
    train = parse(words).train
    assert (train.async_enable, train.partial_rollout_enable) == (pace != "sync", pace == "partial")


def test_an_option_for_every_arm_comes_last_and_one_without_a_value_is_refused(tmp_path):
    arm = arms("main")["off_async"]
    words = frontier.cell(arguments(asynchronous, tmp_path, "--also", "rpo.drafts=auto"), "main", arm, seed=0).job.words
    assert parse(words).rpo.drafts.mode == "auto"
    with pytest.raises(UsageError, match="--also rpo.drafts: NAME=VALUE"):
        frontier.cell(arguments(asynchronous, tmp_path, "--also", "rpo.drafts"), "main", arm, seed=0)


def test_paces_of_a_method_differ_in_nothing_else():
    for method in PACED:
        sync = arms("hard")[f"{method}_sync"]
        for pace, more in PACES.items():
            assert arms("hard")[f"{method}_{pace}"] == sync.named(f"{method}_{pace}", more)
