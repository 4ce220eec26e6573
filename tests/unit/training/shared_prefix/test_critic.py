"""A critic that shares prefixes: OpenRLHF's own critic, its values and gradients."""

import pytest
import torch
from openrlhf.models.model import _get_critic_model
from transformers import Qwen2Model, Qwen2PreTrainedModel

from openrlhf_rpo.training.shared_prefix import critic as shared_critic
from openrlhf_rpo.training.shared_prefix.actor import SharedPrefixError
from openrlhf_rpo.training.shared_prefix.critic import share_critics_prefixes
from tests.unit.training.shared_prefix.conftest import assert_same_gradient, batch, gradient, group, tiny_model

INPUTS = batch(group(3, 12, [5, 2, 7]), group(5, 4, [9, 1], seed=1))


def made(normalize=False, **changes):
    config = tiny_model(**changes).config
    config.normalize_reward = normalize
    if normalize:
        config.mean, config.std = 0.25, 2.0
    torch.manual_seed(1)
    return _get_critic_model(Qwen2PreTrainedModel, Qwen2Model, "score", False)(config)


def call(critic, **options):
    return critic(INPUTS[0], INPUTS[2], attention_mask=INPUTS[1], **options)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_values_and_gradients_are_those_of_whole_rows(mode, normalize, capsys):
    critic = made(normalize)
    plain, _ = call(critic, return_output=True)
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1))
    expected = gradient(critic, (weights * plain).sum())
    share_critics_prefixes(critic, mode)
    for _ in range(2):
        values, _ = call(critic, return_output=True)
        torch.testing.assert_close(values, plain, atol=1e-5, rtol=0)
    assert plain.abs().mean() > 0.01
    assert_same_gradient(gradient(critic, (weights * values).sum()), expected)
    torch.testing.assert_close(call(critic), plain, atol=1e-5, rtol=0)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("Shared prefix, critic: on: 48 instead of 87 tokens in the first batch, values differ")


def test_a_critic_that_cannot_share_keeps_whole_rows_and_whoever_insists_is_told(capsys):
    changes = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    critic = made(**changes)
    share_critics_prefixes(critic, "auto")
    assert "forward" not in vars(critic) or critic.forward == type(critic).forward.__get__(critic)
    assert "Shared prefix, critic: off, every sample runs whole" in capsys.readouterr().out
    with pytest.raises(SharedPrefixError, match="the critic cannot share prefixes"):
        share_critics_prefixes(made(**changes), "on")


def test_values_that_differ_on_the_first_batch_turn_sharing_off(monkeypatch, capsys):
    critic = made()
    plain = call(critic)
    right = shared_critic.shared_values
    monkeypatch.setattr(shared_critic, "shared_values", lambda *args: right(*args) + 0.1)
    share_critics_prefixes(critic, "auto")
    assert torch.equal(call(critic), plain)
    assert "values differ from the plain path" in capsys.readouterr().out


def test_a_value_changes_with_any_token_before_it_and_none_behind():
    critic = made()
    share_critics_prefixes(critic, "on")
    values = call(critic)
    changed = INPUTS[0].clone()
    changed[0, 17] = (changed[0, 17] + 1) % 61  # the third token of the first response
    moved = critic(changed, INPUTS[2], attention_mask=INPUTS[1])
    different = (moved - values).abs() > 1e-7
    assert different[0, 17:19].all() and not different[0, :17].any() and not different[1:].any()
