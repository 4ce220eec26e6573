"""Whole rows with logits in chunks: OpenRLHF's own forward pass, in bytes that do not grow with the sample."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_rpo.launch.doctor import memory
from openrlhf_rpo.training.passes import works_in_chunks
from openrlhf_rpo.training.shared_prefix import chunked, head
from openrlhf_rpo.training.shared_prefix.actor import compute_in_chunks
from tests.unit.training.shared_prefix.conftest import (
    VOCABULARY,
    assert_same_gradient,
    batch,
    gradient,
    group,
    plain_actor,
    tiny_model,
)
from tests.unit.training.shared_prefix.test_head import most_bytes

INPUTS = batch(group(3, 12, [5, 2, 7]), group(5, 4, [9, 1], seed=1))


def call(actor, **options):
    return actor(INPUTS[0], INPUTS[2], attention_mask=INPUTS[1], **options)


def in_chunks(temperature=1.0, packed=False, **changes):
    """An actor, and what it answers before it computes in chunks."""
    actor = plain_actor(tiny_model(**changes), temperature)
    actor.packing_samples = packed
    upstream = call(actor, return_output=True, return_entropy=True)
    compute_in_chunks(actor, "policy")
    return actor, upstream


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_upstreams(monkeypatch, capsys, packed, temperature):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 3 * VOCABULARY)
    actor, (log_probs, output) = in_chunks(temperature, packed)
    weights = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(1))
    entropy = output.entropy * INPUTS[2]
    expected = gradient(actor, (weights * log_probs).sum() + (weights * entropy).sum())
    found, found_output = call(actor, return_output=True, return_entropy=True)
    torch.testing.assert_close(found, log_probs, atol=2e-6, rtol=0)
    torch.testing.assert_close(found_output.entropy, entropy, atol=2e-6, rtol=0)
    assert_same_gradient(gradient(actor, (weights * found).sum() + (weights * found_output.entropy).sum()), expected)
    torch.testing.assert_close(call(actor), log_probs, atol=2e-6, rtol=0)
    assert capsys.readouterr().out == ""


def test_what_asks_for_more_than_log_probs_gets_upstreams_answer():
    actor, _ = in_chunks()
    assert actor(INPUTS[0], attention_mask=INPUTS[1], return_output=True)["logits"].shape == (*INPUTS[0].shape, VOCABULARY)


def test_a_model_with_more_behind_its_output_layer_keeps_upstreams_pass_and_says_so(capsys):
    actor, (log_probs, _) = in_chunks(final_logit_softcapping=30.0)
    for _ in range(2):
        assert torch.equal(call(actor), log_probs)
    assert capsys.readouterr().out == (
        "Logits, policy: those of a whole micro-batch at once, because its output layer is not its last\n"
    )


def test_a_model_whose_own_code_fails_on_log_probs_keeps_upstreams_pass_and_says_so(monkeypatch, capsys):
    actor, (log_probs, _) = in_chunks()

    def shaped(*_args, **_options):
        raise IndexError("too many indices for tensor of dimension 2")

    monkeypatch.setattr(chunked, "whole_log_probs", shaped)
    assert torch.equal(call(actor), log_probs)
    assert "because the first row failed with IndexError: too many indices" in capsys.readouterr().out


def test_log_probs_that_differ_are_not_trusted(monkeypatch, capsys):
    right = chunked.whole_log_probs

    def wrong(*args):
        found = right(*args)
        return SimpleNamespace(log_probs=found.log_probs * 1.01, entropy=found.entropy)

    monkeypatch.setattr(chunked, "whole_log_probs", wrong)
    actor, (log_probs, _) = in_chunks()
    assert torch.equal(call(actor), log_probs)
    assert "log-probs in chunks differ by" in capsys.readouterr().out


SMALL = {"vocab_size": 4000, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
"""A model in which logits are nearly all bytes."""


def growth(actor, with_entropy=False):
    """Bytes by which 400 tokens of one row take more than 200, with their gradients."""

    def most(n):
        sequences, mask = torch.arange(n)[None], torch.ones(1, n, dtype=torch.long)

        def work():
            found, output = actor(sequences, mask[:, 1:], mask, return_output=True, return_entropy=with_entropy)
            (found.sum() + (output.entropy.sum() if with_entropy else 0)).backward()

        return most_bytes(work)

    return most(400) - most(200)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_the_bytes_of_logits_do_not_grow_with_the_sample(monkeypatch, packed):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 50 * SMALL["vocab_size"])
    actor, _ = in_chunks(packed=packed, **SMALL)
    call(actor)  # the check
    assert growth(actor) < 0.3 * 200 * SMALL["vocab_size"] * 4


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_upstreams_bytes_are_those_that_the_doctor_counts(dtype, with_entropy):
    shape = memory.ModelShape(0, 1, 8, 1, 1, SMALL["vocab_size"])
    found = growth(plain_actor(tiny_model(**SMALL).to(dtype)), with_entropy)
    assert memory.logits_term(shape, 200, with_entropy).bytes == pytest.approx(found, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "works"),
    [
        ({}, True),
        ({"rpo__shared_prefix": "off"}, True),
        ({"rpo__method": "off"}, True),
        ({"ds__use_liger_kernel": True}, False),
        ({"actor__aux_loss_coef": 0.1}, False),
    ],
)
def test_where_it_is_used(parse, changes, works):
    assert works_in_chunks(parse(**changes)) is works
