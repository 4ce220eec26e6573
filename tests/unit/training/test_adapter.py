"""Laws of an adapter's weights on their way to the engines."""

import copy
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from lab.testbed import model_dir
from openrlhf_rpo.training.adapter import MergedModel, merged_adapter


@pytest.fixture(scope="module")
def base():
    return AutoModelForCausalLM.from_pretrained(model_dir("main"), dtype=torch.float32)


@pytest.fixture
def adapted(base):
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(copy.deepcopy(base), config)


def test_the_names_and_shapes_are_the_base_models(base, adapted):
    assert {n: p.shape for n, p in MergedModel(adapted).named_parameters()} == {
        n: p.shape for n, p in base.named_parameters()
    }


def test_a_model_with_these_weights_is_the_adapted_one(base, adapted):
    plain = copy.deepcopy(base)
    weights = {name: weight.data for name, weight in MergedModel(adapted).named_parameters()}
    missing = plain.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    ids = torch.arange(3, 20).unsqueeze(0)
    with torch.no_grad():
        # Logits of some tens, in float32.
        torch.testing.assert_close(plain(ids).logits, adapted(ids).logits, rtol=1e-4, atol=2e-4)
        assert (adapted(ids).logits - base(ids).logits).abs().max() > 0.01


def test_the_models_own_weights_are_left_alone(adapted):
    before = {n: p.clone() for n, p in adapted.named_parameters()}
    for _, weight in MergedModel(adapted).named_parameters():
        weight.data.sum()
    assert all(torch.equal(p, before[n]) for n, p in adapted.named_parameters())


def test_a_policy_without_adapter_is_sent_as_it_is_and_one_with_is_itself_again_afterwards(base, adapted):
    for model, merged in ((base, False), (adapted, True)):
        actor = SimpleNamespace(model=SimpleNamespace(module=model))
        trainer = SimpleNamespace(actor=actor)
        with pytest.raises(RuntimeError), merged_adapter(trainer):
            assert isinstance(trainer.actor.model.module, MergedModel) == merged
            raise RuntimeError("a sync that fails")
        assert trainer.actor is actor
