"""OpenRLHF's ``Actor`` with shared prefixes: checked against the plain path on the first batch, or left as it was."""

from types import SimpleNamespace
from typing import Any

import torch

from openrlhf_rpo.training.shared_prefix.attention import enable
from openrlhf_rpo.training.shared_prefix.forward import shared_log_probs
from openrlhf_rpo.training.shared_prefix.layout import lay_out

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Largest mean absolute difference of the first batch's log-probs, in nats, by the weights' type.

Rounding alone gives about 1e-6 in float32 and 1e-3 to 1e-2 in bfloat16; a token that sees one token too many or too few
gives 0.1 and more.
"""


class SharedPrefixError(RuntimeError):
    """``--rpo.shared_prefix on`` was asked for, and this model cannot."""


def share_prefixes(actor: Any, mode: str, name: str) -> None:
    """Make ``actor`` (OpenRLHF's) run shared prefixes once; ``mode`` "auto" or "on", ``name`` for the log.

    With "auto" an actor that cannot keeps its forward, with one line that says why; with "on" SharedPrefixError is raised
    (``passes.sharing_mode``).
    """
    shared = SharedForward(actor, mode, name)
    reason = model_cannot_share(actor)
    if reason is None:
        enable(_config(actor)._attn_implementation)
        actor.forward = shared
    else:
        shared.give_up(reason)


def model_cannot_share(actor: Any) -> str | None:
    """Why this model keeps the plain path (a clause for the log), or None."""
    model = _unwrapped(actor)
    config = _config(actor)
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    reasons = {
        "it is multimodal": getattr(actor, "is_vlm", False),
        f"it has layers of {', '.join(sorted(layers - {'full_attention'}))}": layers != {"full_attention"},
        "it keeps a recurrent state": getattr(model, "_is_stateful", False),
        "it attends within a sliding window": sliding is not None,
        "it drops attention weights at random (attention_dropout)": getattr(config, "attention_dropout", 0) > 0,
        "its architecture does not use transformers' attention registry": not getattr(
            model, "_supports_attention_backend", False
        ),
        "attention 'eager' is the model's own code; sdpa or flash_attention_2 would do": config._attn_implementation
        == "eager",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def agreed(reason: str | None) -> str | None:
    """The first reason that any process of the group has, so that all share or none does."""
    if not torch.distributed.is_initialized():
        return reason
    reasons: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(reasons, reason)
    return next((found for found in reasons if found is not None), None)


def _unwrapped(actor: Any) -> Any:
    """The transformers model in DeepSpeed's engine and PEFT's wrapper."""
    model = getattr(actor.model, "module", actor.model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _config(actor: Any) -> Any:
    return _unwrapped(actor).config.get_text_config()


class SharedForward:
    """In place of ``Actor.forward`` (0.11.2), with its arguments and results."""

    def __init__(self, actor: Any, mode: str, name: str) -> None:
        self.actor, self.mode, self.name = actor, mode, name
        self.plain = actor.forward
        self.checked = False
        # Upstream asks every mixture of experts for its router's logits, which transformers counts by a mask of N x N.
        self.arguments = {"output_router_logits": False} if hasattr(_config(actor), "output_router_logits") else {}

    def __call__(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        return_output: bool = False,
        return_entropy: bool = False,
        **others: Any,
    ) -> Any:
        if action_mask is None or attention_mask is None:
            return self.plain(sequences, action_mask, attention_mask, return_output, return_entropy=return_entropy, **others)
        if not self.checked:
            self.checked = True
            reason = agreed(self.check(sequences, action_mask, attention_mask))
            if reason is not None:
                self.give_up(reason)
                return self.actor.forward(
                    sequences, action_mask, attention_mask, return_output, return_entropy=return_entropy, **others
                )
        result = self.run(sequences, action_mask, attention_mask, return_entropy)
        return (result.log_probs, SimpleNamespace(entropy=result.entropy)) if return_output else result.log_probs

    def run(self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor, entropy: bool = False):
        actor = self.actor
        return shared_log_probs(
            actor.model, sequences, attention_mask, action_mask, actor.temperature, entropy, arguments=self.arguments
        )

    @torch.no_grad()
    def check(self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor) -> str | None:
        """Why sharing cannot be trusted here, or None: both paths on the batch's first rows, without dropout.

        So many rows as cost whole no more than the batch does when it shares, so that the check needs no more memory.
        """
        training = self.actor.training
        self.actor.eval()
        try:
            tokens = lay_out(sequences, attention_mask).tokens
            n = max(2, int((attention_mask.sum(-1).cumsum(0) <= tokens).sum()))
            rows = sequences[:n], action_mask[:n], attention_mask[:n]
            plain, shared = self.plain(*rows), self.run(*rows)
        except torch.OutOfMemoryError:  # of this process alone: others may be in the middle of a collective
            raise
        except (RuntimeError, TypeError, ValueError, KeyError, ImportError) as error:
            return f"its first batch failed with {type(error).__name__}: {error}"
        finally:
            self.actor.train(training)
        gap = ((plain - shared.log_probs).abs().sum() / action_mask[:n].sum().clamp(min=1)).item()
        allowed = TOLERANCE[next(self.actor.model.parameters()).dtype]
        if not gap <= allowed:
            return f"log-probs differ from the plain path by {gap:.1e} on average, more than {allowed:g}"
        self.say(
            f"on: {tokens} instead of {int(attention_mask.sum())} tokens in the first batch, "
            f"log-probs differ from the plain path by {gap:.1e} on average (allowed: {allowed:g})"
        )
        return None

    def give_up(self, reason: str) -> None:
        if self.mode == "on":
            raise SharedPrefixError(
                f"the {self.name} cannot share prefixes, which --rpo.shared_prefix on and --train.dynamic_batch_enable "
                f"count on: {reason}. Leave sharing out with --rpo.shared_prefix off"
            )
        self.actor.forward = self.plain
        self.say(f"off, every sample runs whole: {reason}")

    def say(self, message: str) -> None:
        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            print(f"Shared prefix, {self.name}: {message}", flush=True)
