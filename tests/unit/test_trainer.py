"""What the controller computes of a run before its first step."""

from types import SimpleNamespace

import pytest

from openrlhf_rpo.trainer import _RPOTrainer


@pytest.mark.parametrize(("max_steps", "batch", "epochs", "updates"), [(15, 256, 1, 15), (15, 128, 1, 30), (15, 128, 2, 60)])
def test_the_learning_rate_schedule_is_as_long_as_the_run(max_steps, batch, epochs, updates):
    """100 questions, 64 a step, 10 episodes: 15 steps, where episode by episode it would be 10."""
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=64, n_samples_per_prompt=4),
        train=SimpleNamespace(batch_size=batch, max_epochs=epochs),
    )
    assert _RPOTrainer.get_max_steps(SimpleNamespace(max_steps=max_steps, args=args)) == updates
