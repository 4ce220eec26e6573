"""Attention in a packed row, through transformers' attention registry.

``enable`` replaces the model's attention implementation in the registry by one that handles calls with a ``shared_prefix``
layout and passes every other call on. transformers hands the keyword down from the model's forward, also when a checkpointed
layer runs again in the backward pass.

Three kernels, all exact:

- flash-attention (CUDA with flash-attn installed): one call; queries are the segments, keys are each segment's parent and
  itself; causal, aligned at the end.
- FlexAttention (CUDA): one call with a block mask, compiled once for all shapes.
- scaled dot-product attention (any device): per run, the head causally, then all responses against the head and themselves.
"""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from openrlhf_rpo.training.shared_prefix.layout import Layout, Run

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Layout, float], torch.Tensor]
"""(query (1, H, N, D), key and value (1, K, N, D), layout, scale) -> (1, H, N, D); K divides H."""

# Keywords with which an architecture changes the attention formula; ignoring one would give wrong results.
NOT_SERVED = ("softcap", "s_aux", "position_bias", "sliding_window")


class NotServed(RuntimeError):
    """The model needs an attention feature that shared prefixes do not support."""


def enable(implementation: str, kernel: str = "auto") -> None:
    """Add the ``shared_prefix`` keyword to an attention implementation of transformers ("sdpa", "flash_attention_2"...).

    ``kernel``: a name in KERNELS, or "auto" for the fastest on the tensors' device. Raises KeyError for an implementation
    that is not in the registry ("eager" is each model's own code).
    """
    plain = ALL_ATTENTION_FUNCTIONS[implementation]
    plain = getattr(plain, "plain", plain)

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        shared_prefix: Layout | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        if shared_prefix is None:
            return plain(module, query, key, value, attention_mask, **kwargs)
        asked = [name for name in NOT_SERVED if kwargs.get(name) is not None]
        if asked or kwargs.get("dropout"):
            raise NotServed(f"{type(module).__name__} asks for {', '.join(asked) or 'dropout'} in attention")
        run = KERNELS[best_kernel(query) if kernel == "auto" else kernel]
        scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
        return run(query, key, value, shared_prefix, scale).transpose(1, 2).contiguous(), None

    attention.plain = plain  # type: ignore[attr-defined]
    AttentionInterface.register(implementation, attention)


def best_kernel(query: torch.Tensor) -> str:
    """The fastest kernel for these tensors on this machine."""
    if not query.is_cuda:
        return "sdpa"
    if query.dtype != torch.float32 and find_spec("flash_attn") is not None:
        return "flash"
    return "flex"


# ── Scaled dot-product attention ──


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    """Two calls per run: the head causally, then the responses as a batch against the head and themselves."""
    outputs, start = [], 0
    for number, run in enumerate(layout.runs):
        end = start + run.head
        head = (query[:, :, start:end], key[:, :, start:end], value[:, :, start:end])
        if run.head:
            outputs.append(F.scaled_dot_product_attention(*head, is_causal=True, scale=scale, enable_gqa=True))
        if any(run.responses):
            stop = start + run.tokens
            own = (query[0, :, end:stop], key[0, :, end:stop], value[0, :, end:stop])
            outputs.append(_responses(own, head[1], head[2], run, number, layout, scale))
        start += run.tokens
    return torch.cat(outputs, 2)


def _responses(own: tuple, head_key: torch.Tensor, head_value: torch.Tensor, run: Run, number: int, layout: Layout, scale):
    """``own``: query, key, value of the run's responses, (heads, sum of lengths, D); returns (1, H, sum of lengths, D)."""
    pad, unpad, mask = _padding(run, number, layout, own[0].device)
    query, key, value = (x[:, pad].transpose(0, 1) for x in own)  # (responses, heads, longest, D)
    key = torch.cat([head_key.expand(len(key), -1, -1, -1), key], 2)
    value = torch.cat([head_value.expand(len(value), -1, -1, -1), value], 2)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return output.transpose(0, 1).flatten(1, 2)[:, unpad][None]


def _padding(run: Run, number: int, layout: Layout, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Indices from packed responses to a padded batch and back, and the mask over head and response; cached per layout."""
    if ("sdpa", number) not in layout.kernel_inputs:
        lengths = torch.tensor([n for n in run.responses if n])
        longest = int(lengths.max())
        step = torch.arange(longest)
        inside = step < lengths[:, None]
        starts = lengths.cumsum(0) - lengths
        # A padded query repeats its response's first token; padded keys come after every real query of their row.
        pad = torch.where(inside, starts[:, None] + step, starts[:, None])
        mask = torch.cat([torch.ones(longest, run.head, dtype=torch.bool), step[:, None] >= step], 1)
        layout.kernel_inputs["sdpa", number] = tuple(x.to(device) for x in (pad, inside.flatten().nonzero()[:, 0], mask))
    return layout.kernel_inputs["sdpa", number]


# ── FlexAttention ──

FLEX_BLOCK, FLEX_BUCKET = 128, 512
"""Tokens per block of the mask, and the multiple of it that row lengths are padded to."""


@functools.cache
def _compiled_flex() -> Callable:
    """dynamic: one compilation for all lengths; otherwise each new length costs seconds."""
    return torch.compile(flex_attention, dynamic=True)


def flex(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    """One call with a block mask. Rows are padded to a multiple of FLEX_BUCKET, to limit the number of shapes."""
    n = layout.tokens
    extra = -n % FLEX_BUCKET
    if "flex" not in layout.kernel_inputs:
        layout.kernel_inputs["flex"] = _block_mask(layout, extra)
    query, key, value = (F.pad(x, (0, 0, 0, extra)) for x in (query, key, value))
    attend = _compiled_flex() if query.is_cuda else flex_attention
    return attend(query, key, value, block_mask=layout.kernel_inputs["flex"], scale=scale, enable_gqa=True)[:, :, :n]


def _block_mask(layout: Layout, extra: int) -> BlockMask:
    """As ``create_block_mask``, which would hold all N x N entries at once, but some rows at a time."""
    length = layout.tokens + extra
    segment = F.pad(layout.segment, (0, extra), value=-1)
    parent = F.pad(layout.parent, (0, extra), value=-1)

    def sees(batch, head, q, k):
        return (k <= q) & ((segment[k] == segment[q]) | (segment[k] == parent[q]))

    places = torch.arange(length, device=segment.device)
    seen = torch.cat(
        [
            sees(0, 0, rows[:, None], places).view(-1, FLEX_BLOCK, length // FLEX_BLOCK, FLEX_BLOCK).sum((1, 3))
            for rows in places.split(FLEX_BUCKET)
        ]
    )
    full = seen == FLEX_BLOCK**2
    return BlockMask.from_kv_blocks(*_ordered((seen > 0) & ~full), *_ordered(full), FLEX_BLOCK, sees)


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For (query blocks, key blocks) bool: how many of each row are true, and the key blocks, true ones first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


# ── flash-attention ──


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float) -> torch.Tensor:
    """One varlen call: sequence s has the queries of segment s and the keys of its parent and itself.

    flash-attn 2.1 and later align the causal mask at the end, so a query sees the whole parent.
    """
    from flash_attn import flash_attn_varlen_func

    if "flash" not in layout.kernel_inputs:
        layout.kernel_inputs["flash"] = _varlen(layout)
    gather, lengths = layout.kernel_inputs["flash"]
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    gathered = (x.index_select(0, gather) for x in (key, value))  # indexing would be slow backwards
    deterministic = torch.are_deterministic_algorithms_enabled()  # fixes the order of sums in the backward pass
    output = flash_attn_varlen_func(
        query, *gathered, **lengths, softmax_scale=scale, causal=True, deterministic=deterministic
    )
    return output.transpose(0, 1)[None]


def _varlen(layout: Layout) -> tuple[torch.Tensor, dict[str, Any]]:
    gather, queries, keys, start = [], [], [], 0
    for run in layout.runs:
        head = torch.arange(start, start + run.head)
        start += run.head
        if run.head:
            gather.append(head)
            queries.append(run.head)
            keys.append(run.head)
        for length in filter(None, run.responses):
            gather += [head, torch.arange(start, start + length)]
            queries.append(length)
            keys.append(run.head + length)
            start += length
    device = layout.source.device
    cumulated = [F.pad(torch.tensor(x).cumsum(0), (1, 0)).int().to(device) for x in (queries, keys)]
    return torch.cat(gather).to(device), {
        "cu_seqlens_q": cumulated[0],
        "cu_seqlens_k": cumulated[1],
        "max_seqlen_q": max(queries),
        "max_seqlen_k": max(keys),
    }


KERNELS: dict[str, Kernel] = {"sdpa": sdpa, "flex": flex, "flash": flash}
