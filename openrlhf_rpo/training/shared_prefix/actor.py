"""OpenRLHF's ``Actor`` with shared prefixes, checked against the plain forward pass on the first batch."""

from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from openrlhf_rpo.errors import Failed
from openrlhf_rpo.training.shared_prefix.attention import enable
from openrlhf_rpo.training.shared_prefix.chunked import FAILURES, ChunkedForward, agreed, say
from openrlhf_rpo.training.shared_prefix.forward import ActionLogProbs, shared_log_probs
from openrlhf_rpo.training.shared_prefix.head import unwrapped
from openrlhf_rpo.training.shared_prefix.layout import lay_out

TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (1e-2, 5e-2), torch.float16: (1e-2, 5e-2)}
"""Bounds on the accepted mean absolute difference of log-probs, in nats, by the weights' dtype.

Rounding gives 1e-6 in float32. In bfloat16 it grows with depth and with 1 / temperature: random Qwen2 weights give 0.006 in
8 layers, 0.025 in 16 at temperature 0.7. One token too many in sight gave 0.09.
"""
TIMES_CONTROL = 6
"""Between the bounds, the limit is this many times the difference from packing whole rows. 2 to 5 were seen."""


class SharedPrefixError(Failed):
    """``--rpo.shared_prefix on`` with a model that cannot share prefixes."""


def share_prefixes(actor: Any, mode: str, name: str) -> None:
    """Make OpenRLHF's ``actor`` run shared prefixes once; ``name`` is for the log.

    If it cannot, ``mode`` (``passes.sharing_mode``) "auto" logs why and keeps the plain forward pass; "on" raises
    SharedPrefixError.
    """
    SharedActor(actor, mode, name).take_over(actor.model, getattr(actor, "is_vlm", False))


def compute_in_chunks(actor: Any, name: str) -> None:
    """Make OpenRLHF's ``actor`` compute whole rows without holding all their logits; ``name`` is for the log."""
    actor.forward = ChunkedForward(actor, name, TOLERANCE[next(actor.model.parameters()).dtype][0])


_DROPOUT = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")  # by architecture


def model_cannot_share(model: Any, multimodal: bool = False) -> str | None:
    """Why this transformers model cannot share prefixes (a clause for the log), or None."""
    model, config = unwrapped(model), _config(model)
    layers = getattr(config, "layer_types", None)
    others = sorted(set(layers or ()) - {"full_attention"})
    sliding = None if layers else getattr(config, "sliding_window", None)
    registered = getattr(model, "_supports_attention_backend", False)
    eager = config._attn_implementation == "eager"
    reasons = {
        "it is multimodal": multimodal,
        f"it has layers of {', '.join(others)}": others,
        "it keeps a recurrent state": getattr(model, "_is_stateful", False),
        "it attends within a sliding window": sliding is not None,
        "it drops attention weights at random (attention_dropout)": any(getattr(config, name, 0) for name in _DROPOUT),
        "its architecture does not use transformers' attention registry": not registered,
        "attention 'eager' is the model's own code; sdpa or flash_attention_2 would do": eager,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _config(model: Any) -> Any:
    return unwrapped(model).config.get_text_config()


def first_rows(
    tokens: int, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first rows of a batch: at most ``tokens`` tokens, but at least two rows."""
    n = max(2, int((attention_mask.sum(-1).cumsum(0) <= tokens).sum()))
    return sequences[:n], action_mask[:n], attention_mask[:n]


def unchecked(actor: Any) -> "SharedForward | None":
    """An ``actor``'s shared forward pass before its check, which needs whole groups: a part of them may share nothing."""
    forward = actor.forward
    return forward if isinstance(forward, SharedForward) and not forward.checked else None


class SharedForward:
    """A replacement for ``owner.forward``, and the check whether it may serve. ``name`` is for the log."""

    what: ClassVar[str]
    """Name of its result."""

    def __init__(self, owner: Any, mode: str, name: str) -> None:
        self.owner, self.mode, self.name = owner, mode, name
        self.plain = owner.forward
        self.checked = False

    def values(
        self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor, share: bool = True
    ) -> torch.Tensor:
        """What ``owner.forward`` returns for these rows, (B, A); ``share`` false packs them whole."""
        raise NotImplementedError

    def take_over(self, model: Any, multimodal: bool = False) -> None:
        """Become the owner's ``forward``, or ``give_up``."""
        reason = model_cannot_share(model, multimodal)
        if reason is not None:
            return self.give_up(reason)
        enable(_config(model)._attn_implementation)
        self.owner.forward = self

    def trusted(self, *batch: torch.Tensor) -> bool:
        """Whether to share: checks the first batch, and gives up if any process finds a reason not to."""
        if self.checked:
            return True
        self.checked = True
        reason = agreed(self.check(*batch))
        if reason is not None:
            self.give_up(reason)
        return reason is None

    @torch.no_grad()
    def check(self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor) -> str | None:
        """Why sharing cannot be trusted, or None: runs a batch's first rows plain and shared, without dropout.

        A control, the same rows packed but not shared, shows what rounding does. Only as many rows run as cost no more
        tokens whole than the shared batch, so this needs no extra memory.
        """
        training = self.owner.training
        self.owner.eval()
        try:
            tokens = lay_out(sequences, attention_mask).tokens
            rows = first_rows(tokens, sequences, action_mask, attention_mask)
            plain, shared, control = self.plain(*rows), self.values(*rows), self.values(*rows, share=False)
        except torch.OutOfMemoryError:  # only this process failed: others may be inside a collective operation
            raise
        except FAILURES as error:
            return f"its first batch failed with {type(error).__name__}: {error}"
        finally:
            self.owner.train(training)
        tokens_with_loss = rows[1].sum().clamp(min=1)
        gap, rounding = (((plain - x).abs().sum() / tokens_with_loss).item() for x in (shared, control))
        least, most = TOLERANCE[next(self.owner.parameters()).dtype]
        allowed = min(most, max(least, TIMES_CONTROL * rounding))
        if not gap <= allowed:
            return f"{self.what} differ from the plain path by {gap:.1e} on average, more than {allowed:.1e}"
        say(
            f"Shared prefix, {self.name}: on: {tokens} instead of {int(attention_mask.sum())} tokens in the first batch, "
            f"{self.what} differ from the plain path by {gap:.1e} on average (allowed: {allowed:.1e})"
        )
        return None

    def give_up(self, reason: str) -> None:
        if self.mode == "on":
            raise SharedPrefixError(
                f"the {self.name} cannot share prefixes, which --rpo.shared_prefix on and --train.dynamic_batch_enable "
                f"count on: {reason}. Leave sharing out with --rpo.shared_prefix off"
            )
        self.owner.forward = self.plain
        say(f"Shared prefix, {self.name}: off, every sample runs whole: {reason}")


class SharedActor(SharedForward):
    """Replaces ``Actor.forward`` (OpenRLHF 0.11.2), with the same arguments and results."""

    what = "log-probs"

    def __init__(self, actor: Any, mode: str, name: str) -> None:
        super().__init__(actor, mode, name)
        # Upstream asks mixtures of experts for router logits, for which transformers needs an N x N mask.
        self.arguments = {"output_router_logits": False} if hasattr(_config(actor.model), "output_router_logits") else {}

    def __call__(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        return_output: bool = False,
        return_entropy: bool = False,
        **others: Any,
    ) -> Any:
        maskless = action_mask is None or attention_mask is None
        if maskless or not self.trusted(sequences, action_mask, attention_mask):
            return self.plain(sequences, action_mask, attention_mask, return_output, return_entropy=return_entropy, **others)
        result = self.run(sequences, action_mask, attention_mask, return_entropy)
        return (result.log_probs, SimpleNamespace(entropy=result.entropy)) if return_output else result.log_probs

    def run(
        self,
        sequences: torch.Tensor,
        action_mask: torch.Tensor,
        attention_mask: torch.Tensor,
        entropy: bool = False,
        share: bool = True,
    ) -> ActionLogProbs:
        model, temperature = self.owner.model, self.owner.temperature
        return shared_log_probs(model, sequences, attention_mask, action_mask, temperature, entropy, share, self.arguments)

    def values(
        self, sequences: torch.Tensor, action_mask: torch.Tensor, attention_mask: torch.Tensor, share: bool = True
    ) -> torch.Tensor:
        return self.run(sequences, action_mask, attention_mask, share=share).log_probs
