"""Figures of runs, from what they leave: a path cache's records, or TensorBoard's scalars."""

import json

import pytest
from unit.lab.studies.made import made_run, made_step

from lab.demo import _phases, report
from lab.figures import RunFigures, evaluations_of, plain_run, read_run, steps_of
from lab.runs import StudyError
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.types import StepRecord


def record(step: int, total: float, generated: float) -> StepRecord:
    metrics = {
        "rpo/tokens_generated_total": total,
        "rpo/tokens_reused_total": 100.0,
        "rpo/generated_tokens": generated,
        "rpo/prefix_tokens": 60.0,
        "rpo/truncated_rate": 0.25,
        "rpo/score": 0.5,
        "rpo/groups_without_variance": 0.75,
        "rpo/groups_from_bare_question": 0.0,
        "actor_grad_norm": 0.1 * step,
        "timing/rollout": 2.0,
        "timing/step_total": 3.5,
    }
    return StepRecord(step, 0, 8 * step, metrics)


def test_a_step_has_what_the_total_grew_by_and_the_initial_cache_is_not_a_step():
    first, second = steps_of([record(1, 1400, 40), record(2, 1700, 30)], initial=1000)
    assert (first.tokens, first.samples) == (400, 10)
    assert (second.tokens, second.samples) == (300, 10)
    assert (second.path_length, second.grad_norm, second.seconds) == (90.0, 0.2, {"rollout": 2.0, "step_total": 3.5})


PLAIN = {
    "train/rollout/response_length_mean": {1: 200.0, 2: 210.0},
    "train/rollout/num_samples": {1: 4.0, 2: 4.0},
    "train/rollout/truncated_rate": {1: 0.0, 2: 0.5},
    "train/score": {1: 0.25, 2: 0.5},
    "train/actor_grad_norm": {1: 0.3, 2: 0.1},
    "train/timing/generation": {1: 5.0, 2: 6.0},
    "train/timing/ppo_train": {1: 2.0, 2: 2.5},
    "train/timing/step_total": {1: 7.0, 2: 8.5},
    "eval/eval_a_pass1": {2: 0.5},
    "eval/eval_b_pass1": {2: 0.7},
    "eval/eval_b_pass4": {2: 0.9},
    "eval/eval_response_length_mean": {2: 205.0},
}


@pytest.fixture
def plain(tmp_path):
    """A TensorBoard log of ``PLAIN``."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        for tag, values in PLAIN.items():
            for step, value in values.items():
                writer.add_scalar(tag, value, step)
    return plain_run(tmp_path)


def test_plain_openrlhf_has_the_same_figures_under_the_same_names(plain):
    _, second = steps_of(plain.records, 0)
    assert (second.tokens, second.generated, second.prefix, second.no_variance) == (840, 210.0, 0.0, None)
    assert (second.truncated, second.score, second.bare) == (0.5, 0.5, 1.0)
    assert second.grad_norm == pytest.approx(0.1)
    assert second.seconds == {"rollout": 6.0, "train": 2.5, "step_total": 8.5}


def test_accuracy_is_the_mean_of_pass_at_1_over_data_sets(plain):
    [(step, accuracy, tokens)] = evaluations_of(plain)
    assert (step, accuracy, tokens) == (2, pytest.approx(0.6), 205.0)


def test_a_study_the_demo_and_its_picture_say_the_same_accuracy(tmp_path, capsys, monkeypatch):
    """Of two data sources, before and after one step."""
    with PathCache.open(f"sqlite:///{tmp_path}/checkpoints/rpo_cache.db", {}) as cache:
        cache.mark_initialised()
        cache.commit_step(record(1, 400, 40), [])
        for step, right in ((0, 0.25), (1, 0.5)):
            values = {"eval_a_pass1": right, "eval_b_pass1": 0.75, "eval_response_length_mean": 9.0}
            cache.record_evaluation(step, values)
    host = {"earlier_attempts": 0, "seconds": 9.0, "neighbours": 0.1, "cores": 4}
    assert read_run(tmp_path, host).evaluations == ((0, 0.5, 9.0), (1, 0.625, 9.0))
    drawn = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, *_, **__: drawn.extend(figure.axes[1].lines[0].get_ydata())
    )
    report(tmp_path, "main", 9.0)
    assert "0.500 before, 0.625 after" in capsys.readouterr().out
    assert drawn == [0.5, 0.625]


def test_the_demo_counts_a_phase_that_the_first_step_has_not():
    first, second = record(1, 400, 40), record(2, 800, 40)
    second.metrics["timing/verify"] = 3.0
    assert _phases([first, second]) == [("rollout", 4.0), ("verify", 3.0)]


def test_a_log_without_steps_says_where_to_look(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with pytest.raises(StudyError, match=r"train\.log"):
        plain_run(tmp_path)
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("eval/eval_a_pass1", 0.5, 1)
    with pytest.raises(StudyError, match=r"no training steps.*train\.log"):
        plain_run(tmp_path)


def test_a_missing_log_is_named(tmp_path):
    with pytest.raises(StudyError, match="tensorboard is missing"):
        plain_run(tmp_path / "tensorboard")


def test_the_later_of_two_passes_over_a_step_counts(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for value in (1.0, 2.0):
        with SummaryWriter(tmp_path) as writer:
            writer.add_scalar("train/score", value, 3)
    assert plain_run(tmp_path).series("rpo/score") == [2.0]


def test_tokens_a_sample_weigh_steps_by_their_samples():
    run = made_run(made_step(1, 100.0, tokens=1000), made_step(2, 40.0, tokens=1200, truncated=1.0))
    assert run.generated == pytest.approx(2200 / 40)
    assert run.truncated == pytest.approx(30 / 40)


def test_seconds_are_summed_by_phase():
    run = made_run(made_step(1, 1.0), made_step(2, 1.0, seconds={"rollout": 1.0, "cache": 0.5, "step_total": 2.0}))
    assert run.seconds() == {"rollout": 3.0, "train": 1.0, "cache": 0.5, "step_total": 5.0}


def test_how_rollout_and_training_overlap_is_a_mean_of_what_every_step_recorded():
    ahead = {"rpo/rollout_busy": 0.5, "rpo/policy_age": 1.0}
    first, second = record(1, 1400, 40), record(2, 1700, 30)
    first.metrics.update(ahead)
    second.metrics.update(ahead | {"rpo/rollout_busy": 1.0, "rpo/train_busy": 0.75})
    steps = steps_of([first, second], initial=1000)
    assert steps[0].overlap == {"rollout_busy": 0.5, "policy_age": 1.0}
    assert made_run(*steps).overlap() == {"rollout_busy": 0.75, "policy_age": 1.0}
    assert made_run(made_step(1, 10.0)).overlap() == {}


def test_a_run_is_quiet_beside_work_for_a_twentieth_of_the_cores():
    assert made_run(neighbours=0.2).quiet and not made_run(neighbours=0.21).quiet  # of 4 cores
    assert not made_run(neighbours=0.0, wall_seconds=None).quiet  # nobody knows what ran beside its first part


def test_figures_come_back_from_a_file_as_they_were():
    run = made_run(made_step(1, 10.0), made_step(2, 20.0), wall_seconds=None)
    assert RunFigures.of(json.loads(json.dumps(run.document()))) == run
