"""Log-probs and entropies from logits in chunks: those of all logits at once, in bytes that do not grow with the sample."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import CohereConfig, CohereForCausalLM

from openrlhf_rpo.launch.doctor import memory
from openrlhf_rpo.training.shared_prefix import head
from openrlhf_rpo.training.shared_prefix.head import Targets, log_probs, output_layer
from tests.unit.training.shared_prefix.conftest import tiny_model

POSITIONS, HIDDEN, VOCABULARY = 11, 8, 61


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def asked(temperature=1.0, with_entropy=True):
    """Two tokens after each position, in no order, but none after the last."""
    which = torch.randperm(2 * POSITIONS - 2, generator=torch.Generator().manual_seed(1)) // 2
    return Targets(which, (7 * torch.arange(len(which))) % VOCABULARY, temperature, with_entropy)


def whole(hidden, weight, bias, want):
    """The definition."""
    log = (torch.nn.functional.linear(hidden, weight, bias) / want.temperature).log_softmax(-1)
    entropy = -(log.exp() * log).sum(-1)
    return torch.cat([log[want.which, want.chosen], *[entropy] * want.with_entropy])


@pytest.mark.parametrize("positions", [1, 4, 11, 100])
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [None, drawn(4, VOCABULARY)], ids=["no bias", "bias"])
def test_chunks_give_the_values_and_gradients_of_the_definition(monkeypatch, positions, with_entropy, temperature, bias):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", positions * VOCABULARY + 5)
    want, results = asked(temperature, with_entropy), []
    for one, dtype in ((whole, torch.float64), (lambda h, w, b, want: log_probs(h, want, w, b), torch.float32)):
        given = [drawn(2, POSITIONS, HIDDEN), drawn(3, VOCABULARY, HIDDEN), *[bias] * (bias is not None)]
        inputs = [x.to(dtype).requires_grad_() for x in given]
        out = one(*[*inputs, None][:3], want)
        results.append([out, *torch.autograd.grad(out, inputs, drawn(5, len(out)).to(dtype))])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)


def test_logits_that_are_there_already_are_taken_as_they_are(monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 3 * VOCABULARY)
    want, logits = asked(0.7), drawn(6, POSITIONS, VOCABULARY).float().requires_grad_()
    expected = whole(logits, torch.eye(VOCABULARY), None, want)
    [gradient] = torch.autograd.grad(expected.sum(), logits)
    found = log_probs(logits, want)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], gradient, atol=1e-5, rtol=0)


def test_a_layer_that_is_not_trained_gets_no_gradient():
    hidden, weight = torch.ones(POSITIONS, HIDDEN, requires_grad=True), torch.ones(VOCABULARY, HIDDEN)
    log_probs(hidden, asked(), weight).sum().backward()
    assert weight.grad is None and hidden.grad is not None


def test_no_token_is_a_batch_as_well():
    nothing = torch.zeros(0, dtype=torch.long)
    hidden = torch.zeros(0, HIDDEN, requires_grad=True)
    found = log_probs(hidden, Targets(nothing, nothing, 1.0, True), torch.ones(VOCABULARY, HIDDEN))
    found.sum().backward()
    assert found.shape == (0,) and hidden.grad.shape == (0, HIDDEN)


def test_only_a_layer_whose_output_is_the_logits_works_in_chunks():
    assert isinstance(output_layer(tiny_model()), torch.nn.Linear)
    assert output_layer(tiny_model(final_logit_softcapping=30.0)) is None
    assert output_layer(get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["lm_head"]))) is None
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 61}
    assert output_layer(CohereForCausalLM(CohereConfig(**sizes, logit_scale=0.0625))) is None


# ── Bytes ──


def most_bytes(work):
    """The most bytes of tensors that are alive at a time, of those made inside."""
    with MemTracker() as tracker:
        work()
    [[_, parts]] = tracker.get_tracker_snapshot("peak").items()
    return parts["Total"]


def counted(n, hidden_size, dtype, want=True):
    """Bytes of log-probs and gradients for ``n`` positions of 4,000 logits, without what came in."""
    hidden = torch.zeros(n, hidden_size, dtype=dtype, requires_grad=True)
    weight = torch.zeros(4000, hidden_size, dtype=dtype, requires_grad=True)
    which = torch.arange(n)
    most = most_bytes(lambda: log_probs(hidden, Targets(which, which, 1.0, want), weight).sum().backward())
    return most - hidden.nbytes - weight.nbytes


@pytest.fixture
def fifty_at_once(monkeypatch):
    for module in (head, memory):
        monkeypatch.setattr(module, "LOGITS_AT_ONCE", 50 * 4000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_twice_as_many_tokens_take_no_more_bytes_of_logits(fifty_at_once, dtype, with_entropy):
    few, many = (counted(n, 16, dtype, with_entropy) for n in (200, 400))
    assert many - few < 0.02 * 200 * 4000 * 4, (few, many)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden_size", [4, 16, 64, 256])
def test_the_doctors_estimate_is_what_is_counted(fifty_at_once, dtype, hidden_size):
    shape = memory.ModelShape(0, 1, hidden_size, 1, 1, 4000)
    estimate = memory.chunks_term(shape, 400, dtype.itemsize).bytes
    assert estimate == pytest.approx(counted(400, hidden_size, dtype, want=False), rel=0.15)
