"""The randomness of an optimization round comes from the seed and the steps done, not from what was drawn before."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_rpo import upstream
from openrlhf_rpo.training.policy_actor import RPOPolicyActor


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
