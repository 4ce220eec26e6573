"""What the controller computes, and what it lets end a run."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from openrlhf_rpo import trainer
from openrlhf_rpo.errors import Failed
from openrlhf_rpo.run.checkpoints import Checkpoints
from openrlhf_rpo.trainer import _FINITE, _RPOTrainer, need_finite
from openrlhf_rpo.types import StepRecord


@pytest.mark.parametrize(("max_steps", "batch", "epochs", "updates"), [(15, 256, 1, 15), (15, 128, 1, 30), (15, 128, 2, 60)])
def test_the_learning_rate_schedule_is_as_long_as_the_run(max_steps, batch, epochs, updates):
    """100 questions, 64 a step, 10 episodes: 15 steps, where episode by episode it would be 10."""
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=64, n_samples_per_prompt=4),
        train=SimpleNamespace(batch_size=batch, max_epochs=epochs),
    )
    assert _RPOTrainer.get_max_steps(SimpleNamespace(max_steps=max_steps, args=args)) == updates


@pytest.mark.parametrize("step", [20, 21])
def test_an_error_in_a_step_clears_what_it_has_staged_and_not_what_is_being_published(tmp_path, step):
    def logs(*_):
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(str(tmp_path), 3, float("inf"))
    (checkpoints.staging / "_actor").mkdir(parents=True)
    run = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(save_steps=20)), publisher=SimpleNamespace())
    run.publisher.wait, run.checkpoints, run.client_states = lambda: None, checkpoints, lambda step: {}
    run.save_logs_and_checkpoints = logs
    with pytest.raises(OSError, match="No space"):
        _RPOTrainer.checkpoint(run, step, {})
    assert any(checkpoints.staging.iterdir()) == (step == 21)


@pytest.mark.parametrize("name", _FINITE)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_whose_numbers_are_not_finite_ends_the_run(name, value):
    with pytest.raises(Failed, match=f"^step 7: {name} is {value:g}, .*--ckpt.load_enable resumes"):
        need_finite({"policy_loss": 0.1, "actor_grad_norm": 1.0, "rollout_log_prob_gap": 0.0} | {name: value}, 7)


def test_what_a_run_does_not_measure_does_not_end_it():
    need_finite({"policy_loss": 0.1, "kl": None, "group_reward_std": float("nan")}, 1)


def test_such_a_step_ends_before_it_is_committed(monkeypatch):
    monkeypatch.setattr(trainer, "trained_share", lambda *_: 1.0)
    monkeypatch.setattr(trainer, "needs_old_log_probs", lambda *_: False)
    run = MagicMock(_compute_rollout_stats=lambda _: {}, train_policy=lambda *_: {"policy_loss": math.nan})
    run.args.train.dynamic_batch_enable = False
    with pytest.raises(Failed, match="^step 8: policy_loss is nan"):
        _RPOTrainer.train_on(run, [], 7)


def test_a_checkpoint_that_the_drivers_node_does_not_see_ends_the_run():
    ckpt = SimpleNamespace(save_steps=2, disable_ds=False, path="/there")
    run = SimpleNamespace(args=SimpleNamespace(ckpt=ckpt), client_states=lambda step: {})
    run.publisher = SimpleNamespace(wait=lambda: None, begin=lambda tag: False)
    run.checkpoints = SimpleNamespace(staging_cleared_on_error=nullcontext)
    run.save_logs_and_checkpoints = lambda *_: None
    with pytest.raises(Failed, match="the checkpoint of step 4 cannot be seen .*--ckpt.path /there"):
        _RPOTrainer.checkpoint(run, 4, {})


@pytest.mark.parametrize(("disable_ds", "save_hf", "lost"), [(False, False, True), (True, True, True), (True, False, False)])
@pytest.mark.parametrize("best", [True, False])
def test_so_does_the_best_evaluation_s_where_one_is_written(monkeypatch, disable_ds, save_hf, lost, best):
    monkeypatch.setattr(trainer, "eval_logs", lambda *_: {"eval_a_pass1": 0.5})
    monkeypatch.setattr(trainer, "replace", lambda *_, **__: None)
    run = MagicMock(best_eval_metric_value=0.5, wandb_logger=None, tensorboard_logger=None)
    run.args.ckpt = SimpleNamespace(disable_ds=disable_ds, save_hf=save_hf, path="/there")
    run.publisher.begin.return_value = False
    run.save_best_checkpoint = lambda *_: setattr(run, "best_eval_metric_value", 0.6 if best else 0.5)
    with (
        pytest.raises(Failed, match="the checkpoint of step 4 cannot be seen .*--ckpt.path /there")
        if lost and best
        else nullcontext()
    ):
        _RPOTrainer.evaluate(run, 4)


NOTHING = {"load_enable": False, "disable_ds": False, "save_hf": False, "save_steps": math.inf}


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({}, "--ckpt.output_dir"),
        ({"save_steps": 2}, "--ckpt.path"),
        ({"load_enable": True}, "--ckpt.path"),
        ({"save_steps": 2, "disable_ds": True, "save_hf": True}, "--ckpt.path"),
        ({}, None),
        ({"save_steps": 2, "disable_ds": True}, None),
    ],
)
def test_a_folder_that_is_used_and_that_a_node_does_not_see_is_named(tmp_path, monkeypatch, options, flag):
    """None: the unseen one is --ckpt.path, which this run does not use."""
    path, output_dir = tmp_path / "path", tmp_path / "model"
    path.mkdir()
    output_dir.mkdir()
    unseen = output_dir if flag == "--ckpt.output_dir" else path
    monkeypatch.setattr(trainer.ray, "get", lambda found: found)
    run = SimpleNamespace(eval_questions=[], critic_model_group=None, checkpoints=Checkpoints(str(path), 3, math.inf))
    run.args = SimpleNamespace(ckpt=SimpleNamespace(path=str(path), output_dir=str(output_dir), **NOTHING | options))
    run.actor_model_group = SimpleNamespace(
        async_run_method=lambda _, file: [None, "10.0.0.2" if file.startswith(str(unseen)) else None]
    )
    with pytest.raises(Failed, match=f"^{flag} {unseen} is another folder on 10.0.0.2 than") if flag else nullcontext():
        _RPOTrainer.check_shared_folder(run)
    assert not list(path.iterdir()) + list(output_dir.iterdir())


@pytest.mark.parametrize(("step", "pruned"), [(10, [10]), (11, []), (12, []), (20, [20])])
def test_without_a_checkpoint_the_cache_is_pruned_now_and_then(step, pruned):
    found = []
    run = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(save_steps=12, disable_ds=False)))
    run.publisher = SimpleNamespace(wait=lambda: None, begin=lambda tag: True, prune=found.append)
    run.checkpoints = SimpleNamespace(staging_cleared_on_error=nullcontext)
    run.client_states = run.save_logs_and_checkpoints = lambda *_: None
    _RPOTrainer.checkpoint(run, step, {})
    assert found == pruned


@pytest.mark.parametrize(("step", "tail", "has"), [(3, 1, True), (4, 1, False), (5, 1, True), (4, 0.5, True), (8, 1, True)])
def test_a_step_may_have_a_checkpoint_if_one_is_due_or_its_evaluation_may_be_the_best(step, tail, has):
    args = SimpleNamespace(ckpt=SimpleNamespace(save_steps=5), eval=SimpleNamespace(steps=3))
    run = SimpleNamespace(args=args, max_steps=8, config=SimpleNamespace(tail=tail))
    assert _RPOTrainer.has_checkpoint(run, step) == has


def test_a_resumed_run_has_the_states_of_its_checkpoint():
    states = {
        "global_step": 4,
        "total_consumed_prompts": 9,
        "postponed_prompts": ["q"],
        "kl_coef": 0.5,
        "reward_failures": 3,
    }
    run = MagicMock()
    run.client_states.return_value, run.init_checkpoint_states.return_value = {}, states
    run.cache.records.return_value, run.cache.count.return_value = [StepRecord(4, 0, 9, {"a": 1.0})], 2
    assert _RPOTrainer.resume(run) == 4
    run.cache.rollback.assert_called_once_with(4)
    run.samples.rollback.assert_called_once_with(4)
    run.batches.go_on.assert_called_once_with(run.cache.unfinished.return_value)
    run.broadcast_to_vllm.assert_called_once_with()
    assert (run.stream.position, run.stream.postponed, run.totals) == (9, ["q"], {"a": 1.0})
    assert (run.rollout.gate.version, run.kl_ctl.value, run.failures, run.rollout.scorer.failures) == (4, 0.5, 3, 3)
