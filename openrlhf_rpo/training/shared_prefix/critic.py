"""OpenRLHF's critic with shared prefixes, checked against its plain forward pass on the first batch."""

from typing import Any

import torch

from openrlhf_rpo.training.shared_prefix.actor import SharedForward
from openrlhf_rpo.training.shared_prefix.forward import shared_values
from openrlhf_rpo.training.shared_prefix.head import unwrapped


def share_critics_prefixes(critic: Any, mode: str) -> None:
    """Make OpenRLHF's ``critic``, bare or wrapped, run shared prefixes once. ``mode`` as in ``share_prefixes``."""
    critic = unwrapped(critic)
    SharedCritic(critic, mode, "critic").take_over(critic)


class SharedCritic(SharedForward):
    """Replaces ``CriticModel.forward`` (OpenRLHF 0.11.2, ``models/model.py``), with the same arguments and results."""

    what = "values"

    def __call__(
        self,
        input_ids: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        return_output: bool = False,
        **others: Any,
    ) -> Any:
        maskless = action_mask is None or attention_mask is None
        if maskless or not self.trusted(input_ids, action_mask, attention_mask):
            return self.plain(input_ids, action_mask, attention_mask, return_output, **others)
        values = self.values(input_ids, action_mask, attention_mask)
        return (values, None) if return_output else values

    def values(
        self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor, share: bool = True
    ) -> torch.Tensor:
        return shared_values(self.owner, sequences, attention_mask, action_mask, share)
