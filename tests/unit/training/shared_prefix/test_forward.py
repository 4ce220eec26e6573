"""Sharing changes how log-probs are computed, and nothing else: held against OpenRLHF's forward pass and losses."""

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from peft import LoraConfig, get_peft_model

from openrlhf_rpo.training.shared_prefix.forward import shared_log_probs
from tests.unit.training.shared_prefix.conftest import (
    assert_same_gradient,
    batch,
    gradient,
    group,
    plain_actor,
    tiny_model,
)

MASKS = [[0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 1, 1]]
CASES = {
    "one group": batch(group(3, 12, [5, 2, 7])),
    "several groups in a row, of different lengths": batch(group(3, 12, [5, 2, 7]), group(5, 4, [9, 1], seed=1)),
    "an empty prefix": batch(group(4, 0, [5, 2, 7])),
    "a group of one": batch(group(3, 6, [4])),
    "rows that share nothing": batch(group(3, 6, [4]), group(3, 6, [4], seed=1)),
    "loss on the prefix": batch(group(3, 12, [5, 2, 7], loss_on_prefix=True)),
    "different cuts within a group": batch(group(3, 12, [5, 2]), group(3, 8, [6, 3], loss_on_prefix=True)),
    "a sample that another one goes on from": batch(([[1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4]], MASKS)),
}


def weights(mask):
    return torch.randn(mask.shape, generator=torch.Generator().manual_seed(5))


def both(model, inputs, temperature=1.0):
    """Log-probs and entropies of the plain path and of the shared one."""
    sequences, attention, actions = inputs
    plain, output = plain_actor(model, temperature)(
        sequences, actions, attention_mask=attention, return_output=True, return_entropy=True
    )
    shared = shared_log_probs(model, sequences, attention, actions, temperature, with_entropy=True)
    return (plain, output.entropy * actions), (shared.log_probs, shared.entropy)


@pytest.mark.parametrize("inputs", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropy_are_those_of_the_plain_path(model, inputs, temperature):
    for plain, shared in zip(*both(model, inputs, temperature), strict=True):
        torch.testing.assert_close(shared, plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("inputs", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_group_in_one_row_gives_the_gradients_of_its_samples(model, inputs, checkpointing):
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    w = weights(inputs[2])
    plain, shared = ((w * (log_probs + 0.1 * entropy)).sum() for log_probs, entropy in both(model, inputs))
    assert_same_gradient(gradient(model, shared), gradient(model, plain))


def test_a_group_in_one_row_gives_the_gradients_of_its_samples_one_by_one(model):
    inputs = batch(group(3, 12, [5, 2, 7], loss_on_prefix=True))
    w = weights(inputs[2])
    together = gradient(model, (w * shared_log_probs(model, *inputs).log_probs).sum())
    actor = plain_actor(model)
    alone = sum(
        gradient(model, (w[i : i + 1] * actor(ids, actions, attention_mask=attention)).sum())
        for i in range(3)
        for ids, attention, actions in [[x[i : i + 1] for x in inputs]]
    )
    assert_same_gradient(together, alone)


def test_the_shared_prefix_is_run_once(model):
    inputs = batch(group(3, 12, [5, 2, 7]), group(5, 4, [9, 1], seed=1))
    assert shared_log_probs(model, *inputs).tokens == 15 + 14 + 9 + 10
    assert shared_log_probs(model, *inputs, share=False).tokens == int(inputs[1].sum())


@pytest.mark.parametrize("inputs", CASES.values(), ids=CASES.keys())
def test_packing_whole_rows_is_the_plain_path(model, inputs):
    sequences, attention, actions = inputs
    plain = plain_actor(model)(sequences, actions, attention_mask=attention)
    packed = shared_log_probs(model, sequences, attention, actions, share=False).log_probs
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=0)


def test_only_logits_that_carry_loss_are_computed(model):
    seen = []
    model.lm_head.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    shared_log_probs(model, *batch(group(3, 12, [5, 2, 7])))
    assert seen == [1 + (5 + 2 + 7) - 3]  # the last prefix token predicts three first tokens; last tokens predict none


def test_plain_calls_of_the_same_model_are_untouched(model):
    inputs = batch(group(3, 12, [5, 2, 7]))
    before = tiny_model()(inputs[0], attention_mask=inputs[1]).logits
    shared_log_probs(model, *inputs)
    assert torch.equal(model(inputs[0], attention_mask=inputs[1]).logits, before)


def test_lora_gets_the_same_gradients(model):
    lora = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False))
    inputs = CASES["several groups in a row, of different lengths"]
    w = weights(inputs[2])
    plain, shared = ((w * log_probs).sum() for log_probs, _ in both(lora, inputs))
    assert_same_gradient(gradient(lora, shared), gradient(lora, plain))


LOSSES = {
    "token mean": {},
    "sequence mean": {"token_level_loss": False},
    "dual clip": {"dual_clip": 1.5},
    "gspo": {"policy_loss_type": "gspo"},
    "importance correction": {"is_correction_level": "token"},
}


@pytest.mark.parametrize("loss_options", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("loss_on_prefix", [False, True], ids=["mask", "include"])
@pytest.mark.parametrize("kl", [None, "k1", "k2", "k3"])
def test_upstreams_losses_and_their_gradients_are_the_same(model, loss_options, loss_on_prefix, kl):
    inputs = batch(group(3, 12, [5, 2, 7], loss_on_prefix=loss_on_prefix), group(4, 0, [3, 8], seed=1))
    actions = inputs[2]
    loss_of = PolicyLoss(**loss_options)
    (plain, _), (shared, _) = both(model, inputs)
    old, reference, rollout = (plain.detach() + 0.2 * s * weights(actions) for s in (1, 2, 3))
    advantages = weights(actions[:, :1]).expand_as(actions)

    def loss(log_probs):
        total = loss_of(log_probs, old, advantages, action_mask=actions, rollout_log_probs=rollout)[0]
        if kl is not None:
            penalty = compute_approx_kl(log_probs, reference, kl_estimator=kl)
            total = total + 0.5 * aggregate_loss(penalty, actions, loss_of.token_level_loss)
        return total

    torch.testing.assert_close(loss(shared), loss(plain), atol=1e-5, rtol=1e-5)
    assert_same_gradient(gradient(model, loss(shared)), gradient(model, loss(plain)))
