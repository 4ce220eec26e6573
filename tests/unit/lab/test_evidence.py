"""Every arm is tuned on one set of questions, reported on another, and compared seed by seed with the best full answers."""

import argparse
from statistics import fmean, stdev

import pytest
from unit.lab.studies.made import made_figures

from lab import evidence, frontier
from lab.arms import arms
from lab.curves import cost_to
from lab.real import bench as real
from lab.real.families import FAMILIES, STRETCH
from openrlhf_rpo.errors import UsageError

ABOUT = {"date": "2026-01-01", "command": "c", "versions": {}}
ABOUT |= {"hardware": {"gpus": [], "cores": 2, "machine": "m", "memory_gib": 1.0}}


def arguments(tmp_path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    evidence.add_arguments(parser)
    parser.set_defaults(quick=False, report=tmp_path / "report")
    return parser.parse_args(["--out", str(tmp_path), "--levels", "hard", "--tuning-seeds", "1", "2", *words])


def summary(name: str, tokens: int, *ends: float, **others) -> dict:
    """The frontier's figures of an arm: for each seed, from 1 on, its accuracy at the end; half of it at half of the way."""
    results = [
        made_figures(seed, (0, 0.0, 0.125), (tokens // 2, 5.0, end / 2), (tokens, 10.0, end), quiet=seed == 1, **others)
        for seed, end in enumerate(ends, 1)
    ]
    return frontier.summarize(results, arms("hard")[name])


TRIED = {
    ("grpo_alone", 0.00025): (0.5, 0.5),
    ("grpo_alone", 0.0005): (0.75, 0.25),
    ("raft", 0.00025): (0.5, 0.75),
    ("raft", 0.0005): (0.75, 0.0),
    ("verify_raft", 0.00025): (0.5, 0.5),
    ("verify_raft", 0.0005): (0.75, 0.5),
}
"""Arm and learning rate -> its accuracy at the end with each tuning seed."""
FRESH = {
    "grpo_alone": summary("grpo_alone", 40_000, 1.0, 1.0),  # better than raft where nothing is chosen any more
    "raft": summary("raft", 40_000, 0.5, 0.75),
    "verify_raft": summary("verify_raft", 20_000, 0.75, 1.0),
}
WORDS = ("--arms", "grpo", "raft", "verify", "--lr", "2.5e-4", "5e-4", "--shape", "8x4")


def measured(monkeypatch, tried: dict[tuple[str, float], tuple[float, ...]]) -> list[argparse.Namespace]:
    """Let these be the frontier's figures; the arguments that it is called with."""
    calls = []

    def measure(args, chosen=None):
        calls.append(args)
        tuned = {f"{name}-8x4-lr{lr:g}": summary(name, 40_000, *ends) for (name, lr), ends in tried.items()}
        return ABOUT | {
            "code": ["c1", "c2"],
            "levels": {"hard": {"base": 0.125, **(FRESH if args.held_out_after else tuned)}},
        }

    monkeypatch.setattr(frontier, "measure", measure)
    return calls


def test_an_arm_is_chosen_on_one_set_of_questions_and_seeds_and_reported_on_others(tmp_path, monkeypatch):
    calls = measured(monkeypatch, TRIED)
    found = evidence.run(arguments(tmp_path, *WORDS))["levels"]["hard"]
    assert found["chosen"] == {
        "grpo_alone": "grpo_alone-8x4-lr0.00025",  # as good as the other: the first, the smaller learning rate
        "raft": "raft-8x4-lr0.00025",
        "verify_raft": "verify_raft-8x4-lr0.0005",
    }
    tuning, report = calls
    assert (tuning.held_out_after, report.held_out_after) == (0, frontier.N_HELDOUT)
    assert not set(tuning.seeds) & set(report.seeds) and tuning.out != report.out
    assert tuning.samples == [1, 0]  # nothing is evaluated at the end
    evidence.run(arguments(tmp_path, *WORDS, "--test-set", "2"))
    assert [call.held_out_after for call in calls[2:]] == [0, 2 * frontier.N_HELDOUT]


@pytest.mark.parametrize("test_set", ["0", "7"])
def test_the_questions_of_a_report_are_neither_those_of_validation_nor_those_of_training(tmp_path, test_set):
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--test-set", test_set)
    last = arguments(tmp_path, "--test-set", "6").test_set
    assert (last + 1) * frontier.N_HELDOUT <= STRETCH["train"]


def test_the_baseline_is_the_full_answers_that_validation_found_best_and_seeds_are_paired(tmp_path, monkeypatch):
    measured(monkeypatch, TRIED)
    found = evidence.run(arguments(tmp_path, *WORDS))["levels"]["hard"]
    assert found["baseline"] == "raft"
    assert found["arms"]["verify"]["against"] == {
        "averaged": [0.25, 0.25, 0.25],
        "policy": [0.25, 0.25, 0.25],
        "tokens": [0.5, 0.5, 0.5],
        "seconds": [1.0, 1.0, 1.0],  # of the same pair
        # At 20k verify is at its end (0.75, 1), raft at its first evaluation; before that nothing was measured.
        "at 20k": [0.5625, 0.5, 0.625],
    }
    assert found["arms"]["verify"]["seconds"] == [10.0, 0.0, 1]  # of the run that had the machine to itself
    # From 0.125 at 0 to 0.375 and 0.5 at 10k, then to 0.75 and 1 at 20k: 0.5 is reached at 13,333 and at 10,000.
    assert found["arms"]["verify"]["tokens_to"]["0.5"] == [pytest.approx(11666.6667), pytest.approx(2357.0226), 2]
    assert "0.9" not in found["arms"]["verify"]["tokens_to"]  # the first seed ends at 0.75
    assert set(found["arms"]["raft"]["at_tokens"]) == {"20000", "30000"}  # not 10k: it was evaluated at 20k and 40k
    assert found["arms"]["verify"]["kept"] == [5000.0, 0.0, 2]
    page = (tmp_path / "report.md").read_text()
    assert "| verify | 8x4-lr0.0005, 16 steps | 0.875 ± 0.177 (2) |" in page
    assert "Against `raft`, the best arm on full answers" in page
    assert "The runs are of 2 versions of the package." in page
    assert (tmp_path / "report.png").stat().st_size > 1000 and "](report.png)" in page


def test_a_run_that_ended_before_its_last_step_is_said_to(tmp_path, monkeypatch):
    monkeypatch.setitem(FRESH, "grpo_alone", summary("grpo_alone", 40_000, 1.0, 1.0, steps=9))
    measured(monkeypatch, TRIED)
    evidence.run(arguments(tmp_path, *WORDS))
    assert ", 9 of 32 steps |" in (tmp_path / "report.md").read_text()


def test_what_a_run_reached_before_its_first_evaluation_is_no_measurement():
    early, late = ((0, 0.0), (10_000, 0.8), (20_000, 0.9)), ((0, 0.0), (10_000, 0.4), (20_000, 0.9))
    assert cost_to([late], 0.6) == [pytest.approx(14_000)]
    assert cost_to([early, late], 0.6) == [] and cost_to([early, late], 0.95) == []


def test_the_cost_of_an_accuracy_is_of_all_runs_or_none():
    low, high = ((0, 0.0), (10_000, 0.4), (20_000, 0.5)), ((0, 0.0), (10_000, 0.4), (20_000, 0.9))
    assert cost_to([low, high], 0.45) == [pytest.approx(15_000), pytest.approx(11_000)] and cost_to([low, high], 0.6) == []


def test_an_interval_over_few_seeds_is_as_wide_as_students():
    values = [0.08, -0.02, 0.05, 0.11, 0.03, 0.06, -0.01, 0.1]
    found = evidence.over_seeds(values)
    half = 2.365 * stdev(values) / len(values) ** 0.5
    assert found.mean == pytest.approx(fmean(values))
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)
    assert (over := evidence.over_seeds(values[:7])).low == -0.02 and over.high == 0.11


def test_without_a_finished_run_there_is_no_report(tmp_path):
    words = ("--arms", "raft", "--lr", "5e-4", "--shape", "8x4", "--finished")
    with pytest.raises(UsageError, match="level hard: no run is finished"):
        evidence.run(arguments(tmp_path, *words))


def test_weights_that_were_not_evaluated_have_no_figures(tmp_path, monkeypatch):
    measured(monkeypatch, TRIED)
    found = evidence.run(arguments(tmp_path, *WORDS, "--samples", "1", "0"))["levels"]["hard"]["arms"]["verify"]
    assert found["averaged"] is None and "averaged" not in found["against"] and found["policy"][0] == 0.875
    assert "| verify | 8x4-lr0.0005, 16 steps | - | 0.875 ± 0.177 (2) |" in (tmp_path / "report.md").read_text()


def test_seconds_by_phase_are_shown_where_every_run_had_the_machine_to_itself(tmp_path, monkeypatch):
    monkeypatch.setitem(FRESH, "verify_raft", summary("verify_raft", 20_000, 0.75))  # its only run is a quiet one
    measured(monkeypatch, TRIED)
    arms_found = evidence.run(arguments(tmp_path, *WORDS))["levels"]["hard"]["arms"]
    assert arms_found["verify"]["phases"] == {"rollout": 1.0} and arms_found["raft"]["phases"] is None
    page = (tmp_path / "report.md").read_text()
    assert "- verify: rollout 1.00\n" in page and "- raft:" not in page


def test_nothing_is_chosen_before_every_seed_of_every_cell_is_finished(tmp_path, monkeypatch):
    measured(monkeypatch, TRIED | {("raft", 0.0005): (0.75,)})
    with pytest.raises(UsageError, match="raft-8x4-lr0.0005 on level hard is not tuned"):
        evidence.run(arguments(tmp_path, *WORDS))


def test_tuning_alone_reports_what_was_chosen(tmp_path, monkeypatch):
    calls = measured(monkeypatch, TRIED)
    found = evidence.run(arguments(tmp_path, *WORDS, "--tune"))["levels"]["hard"]
    assert len(calls) == 1 and "arms" not in found and not (tmp_path / "report.png").exists()
    assert "| raft-8x4-lr0.00025 | 0.469 | 40,000 | chosen |" in (tmp_path / "report.md").read_text()


def test_with_one_rate_and_one_shape_nothing_is_tuned(tmp_path, monkeypatch):
    calls = measured(monkeypatch, TRIED)
    monkeypatch.delitem(FRESH, "grpo_alone")
    words = ("--arms", "verify", "raft", "--lr", "5e-4", "--shape", "8x4")
    found = evidence.run(arguments(tmp_path, *words))["levels"]["hard"]
    assert [call.held_out_after for call in calls] == [frontier.N_HELDOUT]
    assert found["chosen"] == {"verify_raft": "verify_raft-8x4-lr0.0005", "raft": "raft-8x4-lr0.0005"}
    assert found["baseline"] == "raft" and found["arms"]["verify"]["against"]["policy"] == [0.25, 0.25, 0.25]
    assert "Nothing was tuned" in (tmp_path / "report.md").read_text()
    evidence.run(arguments(tmp_path, *words, "--tune"))
    assert calls[-1].held_out_after == 0


def test_cells_that_were_chosen_before_are_reported_and_the_first_is_the_baseline(tmp_path, monkeypatch):
    calls = measured(monkeypatch, TRIED)
    words = ("--cells", "raft=96x1by8-2passes@3e-5", "verify=8x4@5e-4", "grpo=24x4@1e-5")
    found = evidence.run(arguments(tmp_path, *words))["levels"]["hard"]
    assert [call.held_out_after for call in calls] == [frontier.N_HELDOUT]  # with several rates and shapes by default
    assert found["chosen"] == {
        "raft": "raft-96x1by8-2passes-lr3e-05",
        "verify_raft": "verify_raft-8x4-lr0.0005",
        "grpo_alone": "grpo_alone-24x4-lr1e-05",
    }
    assert found["baseline"] == "raft" and found["arms"]["grpo"]["against"]["policy"] == [0.375, 0.25, 0.5]
    assert "| raft | 96x1by8-2passes-lr3e-05, 16 steps |" in (tmp_path / "report.md").read_text()


def test_an_arm_is_not_compared_with_itself(tmp_path, monkeypatch):
    measured(monkeypatch, TRIED)
    for other in ("grpo_alone", "verify_raft"):
        monkeypatch.delitem(FRESH, other)
    evidence.run(arguments(tmp_path, "--cells", "raft=32x1@5e-4"))
    page = (tmp_path / "report.md").read_text()
    assert "| raft | 32x1-lr0.0005, 16 steps |" in page and "Against" not in page


@pytest.mark.parametrize(
    "cell",
    [
        "raft",
        "raft=96x1",
        "raft=96@1e-5",
        "raft=96x1by@1e-5",
        "raft=96x1by0@1e-5",
        "none=96x1@1e-5",
        "raft=96x1@fast",
        "grpo=96x1@1e-5",
    ],
)
def test_a_cell_that_no_arm_can_have_is_refused(tmp_path, monkeypatch, cell):
    measured(monkeypatch, TRIED)
    with pytest.raises(UsageError, match=r"raft=32x1@|questions x samples|compares samples"):
        evidence.run(arguments(tmp_path, "--cells", cell))


def test_cells_are_given_or_tuned(tmp_path):
    with pytest.raises(UsageError, match="one cell an arm"):
        evidence.run(arguments(tmp_path, "--cells", "raft=96x1@3e-5", "raft=32x1@3e-5"))
    with pytest.raises(UsageError, match="leave out --tune, or --cells"):
        evidence.run(arguments(tmp_path, "--cells", "raft=96x1@3e-5", "--tune"))


def test_what_was_chosen_on_one_level_is_reported_on_another(tmp_path, monkeypatch):
    calls = []

    def measure(args, chosen=None):
        calls.append(args)
        tuned = {f"{name}-8x4-lr{lr:g}": summary(name, 40_000, *ends) for (name, lr), ends in TRIED.items()}
        assert args.levels == list(chosen) == (["main"] if args.held_out_after else ["hard"])
        return ABOUT | {
            "code": ["c1"],
            "levels": {"main": {"base": 0.5, **FRESH}} if args.held_out_after else {"hard": {"base": 0.125, **tuned}},
        }

    monkeypatch.setattr(frontier, "measure", measure)
    found = evidence.run(arguments(tmp_path, *WORDS, "--levels", "main", "--tune-on", "hard"))["levels"]
    assert found["main"]["chosen"]["verify_raft"] == "verify_raft-8x4-lr0.0005" and found["main"]["baseline"] == "raft"
    assert found["main"]["base"] == 0.5  # the level's own
    assert list(found) == ["main"] and len(calls) == 2


def test_a_family_is_measured_by_the_benchmark_that_makes_its_model(tmp_path):
    with pytest.raises(SystemExit):
        arguments(tmp_path, "--levels", "products")
    parser = argparse.ArgumentParser()
    real.add_arguments(parser)
    assert parser.parse_args([]).levels == list(FAMILIES)


def test_only_arms_that_reuse_answers_are_lengthened():
    chosen = arms("hard")
    assert evidence.lengthened(chosen["verify_raft"], 28 / 16).steps == 28
    assert evidence.lengthened(chosen["raft"], 28 / 16) == chosen["raft"]
    assert evidence.lengthened(chosen["verify_raft"], 1) == chosen["verify_raft"]


def test_one_sample_a_question_is_tried_where_samples_are_not_compared(tmp_path):
    asked = arguments(tmp_path, "--lr", "5e-4")
    asked.arms = ["grpo_alone", "raft"]
    cells = [(arm.name, arm.questions, arm.samples, arm.steps) for arm in frontier.varied(asked, "hard")]
    assert cells == [("grpo_alone", 8, 4, 16), ("raft", 8, 4, 16), ("raft", 32, 1, 16)]
    asked.arms, asked.shape = ["raft"], ["8x1"]
    assert [arm.steps for arm in evidence.cells(asked, "hard")] == [64]  # as many samples
    asked.arms, asked.shape = ["grpo_alone"], ["32x1"]
    with pytest.raises(UsageError, match="--shape 32x1: grpo_alone compares samples"):
        frontier.varied(asked, "hard")


def test_a_batch_is_trained_on_as_often_as_asked(tmp_path):
    asked = arguments(tmp_path, "--lr", "5e-4", "--shape", "32x1", "--passes", "1", "2")
    asked.arms, asked.questions = ["verify_raft"], 8
    once, twice = [frontier.cell(asked, "hard", arm, 1).job for arm in frontier.varied(asked, "hard")]
    assert (once.run.name, twice.run.name) == ("verify_raft-32x1-lr0.0005/seed1", "verify_raft-32x1-2passes-lr0.0005/seed1")
    said = " ".join(twice.words)
    assert "--train.max_epochs 2" in said and "--train.max_epochs" not in " ".join(once.words)
    assert said.replace(" --train.max_epochs 2", "").replace("-2passes", "") == " ".join(once.words)


def test_a_step_is_trained_on_in_as_many_updates_as_asked(tmp_path):
    asked = arguments(tmp_path, "--lr", "5e-4", "--shape", "32x1", "32x1by4")
    asked.arms, asked.questions = ["verify_raft"], 8
    once, often = [frontier.cell(asked, "hard", arm, 1).job for arm in frontier.varied(asked, "hard")]
    assert (once.run.name, often.run.name) == ("verify_raft-32x1-lr0.0005/seed1", "verify_raft-32x1by4-lr0.0005/seed1")
    changed = {"--train.batch_size 32": "--train.batch_size 4", "--train.micro_batch_size 16": "--train.micro_batch_size 4"}
    said = " ".join(once.words).replace("32x1-", "32x1by4-")
    for before, after in changed.items():
        assert said.count(before) == 1
        said = said.replace(before, after)
    assert " ".join(often.words) == said
