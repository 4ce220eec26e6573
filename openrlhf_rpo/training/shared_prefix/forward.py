"""Log-probs of the tokens that carry loss, running the common heads of rows once."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from openrlhf_rpo.training.shared_prefix.head import Targets, answering, log_probs, output_layer
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

    Only hidden states that predict a token with loss go through the output layer, some at a time (``head``).
    """
    layout = lay_out(sequences, attention_mask, share)
    row, column = action_mask.nonzero(as_tuple=True)
    target = column + sequences.shape[1] - action_mask.shape[1]
    # Tokens of a shared head are predicted once for all rows: the logits of each position are computed once.
    kept, which = layout.packed[row, target - 1].unique(return_inverse=True)
    targets = Targets(which, sequences[row, target], temperature, with_entropy)
    layer = output_layer(model)
    with answering(layer, targets):
        output = model(
            sequences.flatten()[layout.source][None],
            # Given a 4-D mask, transformers does not build one of N x N.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=sequences.device),
            position_ids=layout.position[None],
            logits_to_keep=kept,
            use_cache=False,
            shared_prefix=layout,
            **arguments,
        )["logits"][0]
    found = log_probs(output, targets) if layer is None else output
    chosen = _scatter(found[: len(which)], row, column, action_mask)
    entropy = _scatter(found[len(which) :][which], row, column, action_mask) if with_entropy else None
    return ActionLogProbs(chosen, entropy, layout.tokens)


def shared_values(
    critic: Any, sequences: torch.Tensor, attention_mask: torch.Tensor, action_mask: torch.Tensor, share: bool = True
) -> torch.Tensor:
    """The result of OpenRLHF's ``CriticModel.forward`` for the same arguments, (B, A) float32, including gradients.

    ``critic``: a model of OpenRLHF's ``get_llm_for_sequence_regression``, after ``attention.enable``; the others as in
    ``shared_log_probs``.
    """
    layout = lay_out(sequences, attention_mask, share)
    row, column = action_mask.nonzero(as_tuple=True)
    before = layout.packed[row, column + sequences.shape[1] - action_mask.shape[1] - 1]
    hidden = getattr(critic, critic.base_model_prefix)(
        sequences.flatten()[layout.source][None],
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=sequences.device),
        position_ids=layout.position[None],
        use_cache=False,
        shared_prefix=layout,
    )["last_hidden_state"][0]
    values = getattr(critic, critic.value_head_prefix)(hidden)[:, 0][before]
    if critic.normalize_reward:
        values = (values - critic.mean) / critic.std
    return _scatter(values.float(), row, column, action_mask)


def whole_log_probs(
    model: Any,
    sequences: torch.Tensor,
    attention_mask: torch.Tensor,
    action_mask: torch.Tensor,
    temperature: float,
    with_entropy: bool,
    packed: bool,
) -> ActionLogProbs:
    """As ``shared_log_probs``, with the model's own attention: every row whole, or all one after the other (``packed``).

    The model gets what OpenRLHF's ``Actor.forward`` gives it. Its output layer must be one that ``output_layer`` finds.
    """
    row, column = action_mask.nonzero(as_tuple=True)
    target = column + sequences.shape[1] - action_mask.shape[1]
    before = row * sequences.shape[1] + target - 1
    position_ids = attention_mask.long().cumsum(-1) - 1
    if packed:
        there = attention_mask.flatten().nonzero()[:, 0]
        before = (attention_mask.flatten().cumsum(0) - 1)[before]
        input_ids, position_ids = sequences.flatten()[there][None], position_ids.flatten()[there][None]
        seen = None
    else:
        input_ids, position_ids, seen = sequences, position_ids.masked_fill(attention_mask == 0, 1), attention_mask
    targets = Targets(torch.arange(len(row), device=row.device), sequences[row, target], temperature, with_entropy)
    with answering(output_layer(model), targets, before):
        found = model(input_ids, attention_mask=seen, position_ids=position_ids)["logits"][0]
    chosen = _scatter(found[: len(row)], row, column, action_mask)
    entropy = _scatter(found[len(row) :], row, column, action_mask) if with_entropy else None
    return ActionLogProbs(chosen, entropy, int(attention_mask.sum()) if packed else attention_mask.numel())


def _scatter(values: torch.Tensor, row: torch.Tensor, column: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.new_zeros(like.shape).index_put((row, column), values)
