"""The moving average of weights in bfloat16 is the one that real numbers have."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_rpo.training.average import keep_in_float32, load_ema, moving_average, rounded, save_ema


def model(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(torch.bfloat16)


def actor(policy, micro_steps=1, accumulated=1):
    engine = SimpleNamespace(micro_steps=micro_steps, gradient_accumulation_steps=lambda: accumulated)
    return SimpleNamespace(model=engine, parameters=policy.parameters)


@pytest.fixture
def average():
    made = model()
    keep_in_float32(made)
    return made


def test_small_steps_add_up(average):
    """200 steps of a hundredth of a weight's last bit each: in bfloat16 the average would stay where it was."""
    policy, exact = model(), [p.double() for p in model().parameters()]
    begun = [p.double() for p in policy.parameters()]
    for step in range(200):
        for parameter, first in zip(policy.parameters(), begun, strict=True):
            parameter.data = (first * (1 + step * 2.0**-9 / 50)).to(torch.bfloat16)
        moving_average(actor(policy), average, beta=0.99)
        exact = [0.99 * mean + 0.01 * p.double() for mean, p in zip(exact, policy.parameters(), strict=True)]
    for mean, expected, first in zip(average.parameters(), exact, begun, strict=True):
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-7)
        assert (expected - first).abs().max() > 5e-5


@pytest.mark.parametrize(("accumulated", "expected"), [(3, [False, False, True] * 2), (1, [True] * 6)])
def test_it_moves_once_an_optimizer_step(average, accumulated, expected):
    """With dynamic batches DeepSpeed accumulates one, and it is called after optimizer steps only."""
    policy, moved = model(2), []
    for micro_steps in range(1, 7):
        before = [p.clone() for p in average.parameters()]
        moving_average(actor(policy, micro_steps, accumulated), average)
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, average.parameters(), strict=True)))
    assert moved == expected


def test_it_is_saved_as_a_model_in_the_precision_of_the_weights_and_kept_in_its_own(average):
    exact = [p.data.clone() for p in average.parameters()]
    moving_average(actor(model(2)), average, beta=0.5)
    kept = [p.data.clone() for p in average.parameters()]
    with rounded(average, model(2)):
        assert all(torch.equal(p.data, k.bfloat16()) for p, k in zip(average.parameters(), kept, strict=True))
    assert all(torch.equal(p.data, k) for p, k in zip(average.parameters(), kept, strict=True))
    assert not torch.equal(kept[0], exact[0])


def test_it_comes_back_bit_for_bit(tmp_path, average):
    moving_average(actor(model(2)), average)
    loaded = model(3)
    keep_in_float32(loaded)
    save_ema(average, str(tmp_path / "ema.safetensors"))
    load_ema(loaded, str(tmp_path / "ema.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(average.parameters(), loaded.parameters(), strict=True))
