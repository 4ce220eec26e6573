"""The randomness of an optimization round comes from the seed and the steps done, not from what was drawn before."""

import math
from types import SimpleNamespace

import pytest
import torch

from openrlhf_rpo import upstream
from openrlhf_rpo.errors import Failed
from openrlhf_rpo.run.checkpoints import Checkpoints
from openrlhf_rpo.training.resumable import (
    RPOCriticActor,
    RPOPolicyActor,
    need_finite_weights,
    staged,
)


@pytest.fixture
def draws(monkeypatch):
    """What the round of an actor that has done so many optimizer steps would draw."""
    monkeypatch.setattr(upstream.PolicyModelActor, "fit", lambda self, kl_ctl: torch.rand(3).tolist())

    def run(seed, steps):
        actor = object.__new__(upstream.unwrap(RPOPolicyActor))
        actor.strategy = SimpleNamespace(seed=seed)
        actor.actor = SimpleNamespace(model=SimpleNamespace(global_steps=steps))
        return actor.fit(0.0)

    return run


def test_a_resumed_run_draws_the_same(draws):
    first = draws(42, 5)
    torch.rand(100)
    assert draws(42, 5) == first


def test_other_steps_and_other_seeds_draw_differently(draws):
    assert len({tuple(draws(seed, steps)) for seed in (1, 2, 42) for steps in range(10)}) == 30


def test_the_critic_draws_by_its_own_steps(monkeypatch):
    monkeypatch.setattr(upstream.CriticModelActor, "fit", lambda self: torch.rand(3).tolist())

    def run(steps):
        critic = object.__new__(upstream.unwrap(RPOCriticActor))
        critic.strategy, critic.critic = SimpleNamespace(seed=42), SimpleNamespace(global_steps=steps)
        return critic.fit()

    first = run(5)
    torch.rand(100)
    assert run(5) == first != run(6)


# ── Checkpoints ──


def test_checkpoints_are_written_aside_and_the_path_comes_back_after_an_error(tmp_path):
    args = SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path)))
    with pytest.raises(OSError), staged(args):
        assert args.ckpt.path == str(Checkpoints(str(tmp_path), 1, 1.0).staging)
        raise OSError
    assert args.ckpt.path == str(tmp_path)


def test_both_training_actors_write_their_checkpoints_aside(monkeypatch, tmp_path):
    def save(self, tag, **kwargs):
        written.append((self.strategy.args.ckpt.path, tag))

    written = []
    for ray_class, base in ((RPOPolicyActor, upstream.PolicyModelActor), (RPOCriticActor, upstream.CriticModelActor)):
        monkeypatch.setattr(base, "save_checkpoint", save)
        actor = object.__new__(upstream.unwrap(ray_class))
        actor.strategy = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path))))
        actor.ema_model = None
        actor.actor = actor.critic = model = torch.nn.Linear(1, 1)
        actor.save_checkpoint("global_step2", metric_value=None)
        torch.nn.init.constant_(model.weight, math.nan)
        with pytest.raises(Failed, match="nothing is written"):
            actor.save_checkpoint("global_step3", metric_value=None)
    assert written == [(str(tmp_path / "incoming"), "global_step2")] * 2


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_never_written(wrong):
    model = torch.nn.Linear(3, 2)
    need_finite_weights(model)
    with torch.no_grad():
        model.bias[1] = wrong
    with pytest.raises(Failed, match="the weights bias are not finite: nothing is written"):
        need_finite_weights(model)


def test_of_a_partitioned_parameter_the_part_of_this_process_counts():
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.ds_tensor = torch.tensor([1.0, math.nan])
    with pytest.raises(Failed, match="the weights weight are"):
        need_finite_weights(model)
