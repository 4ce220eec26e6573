"""OpenRLHF's ``Actor.forward`` without the logits of a whole micro-batch, for rows that share no prefix."""

from types import SimpleNamespace
from typing import Any

import torch

from openrlhf_rpo.training.shared_prefix.forward import whole_log_probs
from openrlhf_rpo.training.shared_prefix.head import output_layer

CHECKED = 512
"""Tokens of the first row that are computed both ways."""
FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ImportError)
"""What a model's own code may raise for a form of its tensors that it does not expect."""


def agreed(reason: str | None) -> str | None:
    """The first reason of any process, so that all processes do the same."""
    if not torch.distributed.is_initialized():
        return reason
    reasons: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(reasons, reason)
    return next((found for found in reasons if found is not None), None)


def say(message: str) -> None:
    """Print on rank 0 only."""
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        print(message, flush=True)


class ChunkedForward:
    """Replaces ``Actor.forward`` (OpenRLHF 0.11.2), with the same arguments and results.

    ``name`` is for the log. A model whose log-probs differ from upstream's by more than ``tolerance`` nats on average, in
    the first tokens of the first row, keeps upstream's forward pass.
    """

    def __init__(self, actor: Any, name: str, tolerance: float) -> None:
        self.actor, self.name, self.tolerance = actor, name, tolerance
        self.upstream = actor.forward
        self.trusted: bool | None = None

    def __call__(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        return_output: bool = False,
        return_entropy: bool = False,
        packed_seq_lens: Any = None,
        **others: Any,
    ) -> Any:
        unusual = any(value is not None and value is not False for value in others.values())
        if action_mask is None or attention_mask is None or unusual or not self.trust(sequences, attention_mask):
            return self.upstream(
                sequences, action_mask, attention_mask, return_output, return_entropy=return_entropy, **others
            )
        found = whole_log_probs(
            self.actor.model,
            sequences,
            attention_mask,
            action_mask,
            self.actor.temperature,
            return_entropy,
            self.actor.packing_samples,
        )
        return (found.log_probs, SimpleNamespace(entropy=found.entropy)) if return_output else found.log_probs

    def trust(self, sequences: torch.Tensor, attention_mask: torch.Tensor) -> bool:
        if self.trusted is None:
            reason = "its output layer is not its last" if output_layer(self.actor.model) is None else None
            reason = agreed(reason or self.check(sequences[:1, :CHECKED], attention_mask[:1, :CHECKED]))
            self.trusted = reason is None
            if reason:
                say(f"Logits, {self.name}: those of a whole micro-batch at once, because {reason}")
        return self.trusted

    @torch.no_grad()
    def check(self, sequences: torch.Tensor, attention_mask: torch.Tensor) -> str | None:
        """Compare a row with upstream's, without dropout; why not to go on, or None."""
        training, mask = self.actor.training, attention_mask[:, 1:]
        self.actor.eval()
        try:
            model, packed = self.actor.model, self.actor.packing_samples
            found = whole_log_probs(model, sequences, attention_mask, mask, self.actor.temperature, False, packed)
            expected = self.upstream(sequences, mask, attention_mask)
        except torch.OutOfMemoryError:  # only this process failed: others may be inside a collective operation
            raise
        except FAILURES as error:
            return f"the first row failed with {type(error).__name__}: {error}"
        finally:
            self.actor.train(training)
        gap = ((found.log_probs - expected).abs().sum() / mask.sum().clamp(min=1)).item()
        return None if gap <= self.tolerance else f"log-probs in chunks differ by {gap:.1e} on average"
