"""Log-probs of chosen tokens from the output layer, without the logits of a whole micro-batch.

Logits are the largest tensors of a step: 4,096 positions of 151,936 entries are 2.3 GiB in float32. Here the output layer
computes them for a chunk of positions at a time, returns log-probs in their place, and computes them again in the backward
pass. It does so where the model calls it, so that module hooks (ZeRO stage 3 gathers weights) keep working.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from openrlhf_rpo.training.passes import LOGITS_AT_ONCE

_CHANGES_LOGITS = (
    *("final_logit_softcapping", "logits_soft_cap", "logit_scale", "logits_scaling", "output_multiplier"),
    *("lm_head_multiplier", "unpadded_vocab_size"),
)
"""Settings of transformers models that change logits after the output layer."""


@dataclass(frozen=True)
class Targets:
    """The tokens ``chosen`` (N,) that follow positions ``which`` (N,) of the output layer's input, and what to compute for
    them."""

    which: torch.Tensor
    chosen: torch.Tensor
    temperature: float
    with_entropy: bool

    def chunks(self, n: int, size: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """For ``n`` positions, ``size`` at a time: the positions, and the indices of the tokens after them."""
        order = self.which.argsort()
        starts = torch.arange(0, n + size, size, device=order.device)
        ends = torch.searchsorted(self.which[order], starts).tolist()
        for i, start in enumerate(range(0, n, size)):
            yield slice(start, start + size), order[ends[i] : ends[i + 1]]


def unwrapped(model: Any) -> Any:
    """The transformers model inside DeepSpeed's engine and PEFT's wrapper."""
    model = getattr(model, "module", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def output_layer(model: Any) -> nn.Linear | None:
    """The output layer of a model if its output is the logits; None for other kinds of layers, and if more follows."""
    model = unwrapped(model)
    config = model.config.get_text_config()
    layer = model.get_output_embeddings()
    changes = any(getattr(config, name, None) not in (None, 1) for name in _CHANGES_LOGITS)
    return layer if type(layer) is nn.Linear and "forward" not in vars(layer) and not changes else None


@contextmanager
def answering(layer: nn.Linear | None, targets: Targets, kept: torch.Tensor | None = None) -> Iterator[None]:
    """While inside, ``layer`` returns ``log_probs`` of its input (B, T, H), as (1, N + K); None changes nothing.

    ``kept`` (K,): which of the B x T positions count; None: all.
    """
    if layer is None:
        yield
        return

    def answer(hidden: torch.Tensor) -> torch.Tensor:
        positions = hidden.flatten(0, 1)
        return log_probs(positions if kept is None else positions[kept], targets, layer.weight, layer.bias)[None]

    layer.forward = answer  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward


def log_probs(
    hidden: torch.Tensor, targets: Targets, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Float32: (N,) log-probs of the tokens asked for, then, if asked for, the (K,) entropies of all positions.

    ``hidden``: (K, H), the input of the output layer, ``weight`` (V, H); without ``weight`` the logits themselves, (K, V).
    """
    return _LogProbs.apply(hidden, weight, bias, targets)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: Any, bias: Any, targets: Targets) -> torch.Tensor:
        ctx.targets, ctx.size = targets, max(1, LOGITS_AT_ONCE // (hidden.shape[1] if weight is None else weight.shape[0]))
        found = hidden.new_empty(len(targets.which), dtype=torch.float32)
        normalizer, entropy = hidden.new_empty((2, len(hidden)), dtype=torch.float32)
        for part, pairs in targets.chunks(len(hidden), ctx.size):
            logits = _logits(hidden[part], weight, bias, targets.temperature)
            normalizer[part] = logits.logsumexp(-1)
            which = targets.which[pairs]
            found[pairs] = logits[which - part.start, targets.chosen[pairs]] - normalizer[which]
            if targets.with_entropy:
                entropy[part] = normalizer[part] - logits.softmax(-1).mul_(logits).sum(-1)
            del logits  # before the next chunk's
        ctx.save_for_backward(hidden, weight, bias, normalizer, entropy)
        return torch.cat([found, entropy]) if targets.with_entropy else found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None]:
        """d log-prob: chosen - softmax. d entropy H: -p (log p + H), for each token with probability p."""
        hidden, weight, bias, normalizer, entropy = ctx.saved_tensors
        targets, n = ctx.targets, len(ctx.targets.which)
        of_position = torch.zeros_like(normalizer).index_add_(0, targets.which, gradient[:n])
        of_hidden = torch.empty_like(hidden)
        of_weight, of_bias = (
            torch.zeros_like(x, dtype=torch.float32) if needed else None
            for x, needed in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
        )

        def of_logits(part: slice, pairs: torch.Tensor) -> torch.Tensor:
            logits = _logits(hidden[part], weight, bias, targets.temperature).sub_(normalizer[part, None])
            found = logits.exp()
            if targets.with_entropy:
                found *= logits.add_(entropy[part, None]).mul_(-gradient[n:][part, None]).sub_(of_position[part, None])
            else:
                found *= -of_position[part, None]
            places = targets.which[pairs] - part.start, targets.chosen[pairs]
            return found.index_put_(places, gradient[pairs], accumulate=True).div_(targets.temperature)

        for part, pairs in targets.chunks(len(hidden), ctx.size):
            found = of_logits(part, pairs).to(hidden.dtype)
            of_hidden[part] = found if weight is None else found @ weight
            if of_weight is not None:
                of_weight += found.T @ hidden[part]
            if of_bias is not None:
                of_bias += found.sum(0)
            del found  # before the next chunk's logits
        return of_hidden, _as(of_weight, weight), _as(of_bias, bias), None


def _logits(hidden: torch.Tensor, weight: Any, bias: Any, temperature: float) -> torch.Tensor:
    """(K, V) in float32, a tensor of its own."""
    if weight is None:
        return hidden.float() / temperature
    return nn.functional.linear(hidden, weight, bias).float().div_(temperature)


def _as(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if gradient is None else gradient.to(like.dtype)
