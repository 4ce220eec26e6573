"""Log-probs of the tokens that carry loss, running the common heads of rows once."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from openrlhf_rpo.training.shared_prefix.layout import lay_out


@dataclass(frozen=True)
class ActionLogProbs:
    """(B, A) float32 tensors, 0 where the action mask is 0. ``tokens``: how many the model ran."""

    log_probs: torch.Tensor
    entropy: torch.Tensor | None
    tokens: int


def shared_log_probs(
    model: Any,
    sequences: torch.Tensor,
    attention_mask: torch.Tensor,
    action_mask: torch.Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
    share: bool = True,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> ActionLogProbs:
    """The result of OpenRLHF's ``Actor.forward`` for the same arguments, including gradients.

    ``model``: a causal language model of transformers, bare or wrapped (PEFT, DeepSpeed), after ``attention.enable``.
    ``sequences``, ``attention_mask``: (B, T), padded on the right. ``action_mask``: (B, A); its last column is the last
    token of the row. ``share`` false packs whole rows. ``arguments`` are passed to the model.

    Only hidden states that predict a token with loss go through the output layer.
    """
    layout = lay_out(sequences, attention_mask, share)
    row, column = action_mask.nonzero(as_tuple=True)
    target = column + sequences.shape[1] - action_mask.shape[1]
    # Tokens of a shared head are predicted once for all rows: the logits of each position are computed once.
    kept, which = layout.packed[row, target - 1].unique(return_inverse=True)
    output = model(
        sequences.flatten()[layout.source][None],
        # Given a 4-D mask, transformers does not build one of N x N.
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=sequences.device),
        position_ids=layout.position[None],
        logits_to_keep=kept,
        use_cache=False,
        shared_prefix=layout,
        **arguments,
    )
    logits = output["logits"][0].float()
    if temperature != 1.0:
        logits = logits / temperature
    chosen, normalizer = _ChosenLogProbs.apply(logits, which, sequences[row, target])
    entropy = None
    if with_entropy:
        spread = normalizer - (logits.softmax(-1) * logits).sum(-1)
        entropy = _scatter(spread[which], row, column, action_mask)
    return ActionLogProbs(_scatter(chosen, row, column, action_mask), entropy, layout.tokens)


class _ChosenLogProbs(torch.autograd.Function):
    """(N,) log-probs of the tokens ``chosen`` after the positions ``which`` of ``logits`` (K, V); the (K,) normalizers.

    The gradient, chosen - softmax, needs one tensor of the logits' size instead of autograd's four; logits are the largest
    tensors of a step.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, which: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normalizer = logits.logsumexp(-1)
        ctx.save_for_backward(logits, normalizer, which, chosen)
        return logits[which, chosen] - normalizer[which], normalizer

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, of_normalizer: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, normalizer, which, chosen = ctx.saved_tensors
        of_position = of_normalizer.index_add(0, which, gradient, alpha=-1)
        out = torch.sub(logits, normalizer[:, None]).exp_().mul_(of_position[:, None])
        return out.index_put_((which, chosen), gradient, accumulate=True), None, None


def _scatter(values: torch.Tensor, row: torch.Tensor, column: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(like.shape).index_put((row, column), values)
