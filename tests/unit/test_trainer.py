"""What the controller computes of a run before its first step."""

from types import SimpleNamespace

import pytest

from openrlhf_rpo.errors import Failed
from openrlhf_rpo.run.checkpoints import Checkpoints
from openrlhf_rpo.trainer import _FINITE, _RPOTrainer, need_finite


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
