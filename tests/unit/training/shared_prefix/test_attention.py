"""The kernels agree; what they cannot serve is refused."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_block_mask

from openrlhf_rpo.training.shared_prefix import attention
from openrlhf_rpo.training.shared_prefix.attention import KERNELS, NotServed, best_kernel, enable, flex
from openrlhf_rpo.training.shared_prefix.forward import shared_log_probs
from openrlhf_rpo.training.shared_prefix.layout import lay_out
from tests.unit.training.shared_prefix.conftest import batch, group, tiny_model

BATCHES = [
    batch(group(3, 12, [5, 2, 7]), group(5, 4, [9, 1], seed=1), group(2, 1, [3], seed=2)),
    batch(([[1, 2, 3], [1, 2, 3], [4]], [[0, 1, 1]] * 2 + [[1]])),
]


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, deterministic):
    """flash_attn_varlen_func as its documentation (2.8.3) describes it: causal, aligned at the bottom right."""
    assert causal
    outputs = []
    for i in range(len(cu_seqlens_q) - 1):
        queries = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        keys = slice(int(cu_seqlens_k[i]), int(cu_seqlens_k[i + 1]))
        n, m = queries.stop - queries.start, keys.stop - keys.start
        assert 0 < n <= max_seqlen_q and m <= max_seqlen_k
        mask = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        parts = (q[queries], k[keys], v[keys])
        parts = (x.transpose(0, 1)[None] for x in parts)
        attended = F.scaled_dot_product_attention(*parts, attn_mask=mask, scale=softmax_scale, enable_gqa=True)
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.fixture
def flash_attn(monkeypatch):
    module = ModuleType("flash_attn")
    module.flash_attn_varlen_func = varlen
    monkeypatch.setitem(sys.modules, "flash_attn", module)


@pytest.mark.parametrize("inputs", BATCHES)
@pytest.mark.parametrize("kernel", KERNELS)
@torch.no_grad()
def test_every_kernel_attends_as_the_layout_says(flash_attn, inputs, kernel):
    """Held against the full N x N mask. FlexAttention runs without its compiler here, on the same block mask."""
    layout = lay_out(*inputs[:2])
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, layout.tokens, 8) for heads in (4, 2, 2))
    at = torch.arange(layout.tokens)
    segment, parent = layout.segment, layout.parent
    sees = (at <= at[:, None]) & ((segment == segment[:, None]) | (segment == parent[:, None]))
    wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=0.5, enable_gqa=True)
    torch.testing.assert_close(KERNELS[kernel](query, key, value, layout, 0.5), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("inputs", [*BATCHES, batch(group(300, 4, [900, 1, 150]), group(700, 4, [260, 33], seed=1))])
def test_the_block_mask_is_the_one_that_torch_makes_of_all_entries_at_once(inputs):
    layout = lay_out(*inputs[:2])
    extra = -layout.tokens % attention.FLEX_BUCKET
    ours, length = attention._block_mask(layout, extra), layout.tokens + extra
    theirs = create_block_mask(ours.mask_mod, None, None, length, length, device="cpu")
    assert ours.shape == theirs.shape and ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    for kind in ("kv", "full_kv", "q", "full_q"):
        for name in (f"{kind}_num_blocks", f"{kind}_indices"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=0, rtol=0, msg=name)


@pytest.mark.long
@torch.no_grad()
def test_flex_attention_is_compiled_once_and_attends_as_without_its_compiler(monkeypatch):
    """The kernel of GPUs without flash-attn. On a CPU torch compiles its forward pass only."""
    torch.compiler.set_stance("default")
    compiled, graphs = attention._compiled_flex(), []
    layouts = [lay_out(*batch(group(prefix, 4, [9, 1, 5]))[:2]) for prefix in (20, 700, 1300, 1900)]
    states = [[torch.randn(1, heads, layout.tokens, 16) for heads in (4, 2, 2)] for layout in layouts]
    plain = [flex(*qkv, layout, 0.25) for qkv, layout in zip(states, layouts, strict=True)]
    monkeypatch.setattr(attention, "flex_attention", compiled)
    counters.clear()
    for qkv, layout, wanted in zip(states, layouts, plain, strict=True):
        torch.testing.assert_close(flex(*qkv, layout, 0.25), wanted, atol=1e-5, rtol=1e-4)
        graphs.append(counters["stats"]["unique_graphs"])
    assert 1 <= graphs[1] <= 2 and graphs[1:] == [graphs[1]] * 3  # 512 tokens are one shape, all others one


@pytest.mark.parametrize(
    ("dtype", "installed", "kernel"),
    [(torch.bfloat16, True, "flash"), (torch.bfloat16, False, "flex"), (torch.float32, True, "flex")],
)
def test_a_gpu_without_flash_attention_takes_flex_attention(monkeypatch, dtype, installed, kernel):
    monkeypatch.setattr(attention, "find_spec", lambda name: object() if installed else None)
    assert best_kernel(SimpleNamespace(is_cuda=True, dtype=dtype)) == kernel


def test_an_architecture_that_changes_attention_is_refused():
    model = tiny_model(use_sliding_window=True, sliding_window=8, max_window_layers=0)
    enable("sdpa")
    with pytest.raises(NotServed, match="sliding_window"):
        shared_log_probs(model, *BATCHES[0])


def test_attention_dropout_is_refused():
    model = tiny_model(attention_dropout=0.1).train()
    enable("sdpa")
    with pytest.raises(NotServed, match="dropout"):
        shared_log_probs(model, *BATCHES[0])


def test_enabling_twice_wraps_once():
    enable("sdpa")
    enable("sdpa")
    registered = attention.ALL_ATTENTION_FUNCTIONS["sdpa"]
    assert not hasattr(registered.plain, "plain")


def test_an_implementation_outside_the_registry_is_refused():
    with pytest.raises(KeyError):
        enable("eager")
