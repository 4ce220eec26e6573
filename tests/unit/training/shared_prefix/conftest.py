"""A tiny Qwen2 in float32, groups of rows, and OpenRLHF's own forward pass as the reference."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from openrlhf_rpo.training.shared_prefix import head
from openrlhf_rpo.training.shared_prefix.attention import enable
from openrlhf_rpo.upstream import Actor

VOCABULARY = 61


def tiny_model(**changes):
    torch.manual_seed(0)
    config = Qwen2Config(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.3,  # so that predictions depend on the context
            "attn_implementation": "sdpa",
            **changes,
        }
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture(autouse=True)
def no_compiler():
    """Upstream compiles its entropy; for each new shape that takes longer than all of these tests."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(head, "LOGITS_AT_ONCE", 3 * VOCABULARY)  # three positions at a time
    enable("sdpa")
    return tiny_model()


def draw(length, seed):
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def group(prompt, prefix, responses, seed=0, loss_on_prefix=False):
    """Rows of one group and their loss masks (an entry a token); ``responses`` are lengths in tokens."""
    head = draw(prompt + prefix, seed)
    rows = [head + draw(n, 100 * seed + i + 1) for i, n in enumerate(responses)]
    masks = [[0] * prompt + [int(loss_on_prefix)] * prefix + [1] * n for n in responses]
    return rows, masks


def batch(*groups):
    """(sequences, attention_mask, action_mask), padded on the right."""
    rows = [row for rows, _ in groups for row in rows]
    masks = [mask for _, masks in groups for mask in masks]
    width = max(map(len, rows))

    def pad(row):
        return row + [0] * (width - len(row))

    attention = torch.tensor([pad([1] * len(row)) for row in rows])
    return torch.tensor([pad(row) for row in rows]), attention, torch.tensor([pad(mask)[1:] for mask in masks])


def plain_actor(model, temperature=1.0):
    """OpenRLHF's actor around a model that is already there."""
    actor = Actor(model, temperature=temperature)
    actor.packing_samples = False
    return actor


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same_gradient(a, b, tolerance=1e-5):
    """Relative to the norm of the whole gradient."""
    difference = (a - b).norm() / b.norm()
    assert difference < tolerance, f"gradients differ by {difference:.1e} of their norm"
