"""The moving average of the policy's weights (``--train.enable_ema``), kept in float32.

Upstream keeps it in the weights' own precision (``DeepspeedStrategy.moving_average``). In bfloat16 that hardly moves: a step
changes it by 1 - beta of an already small difference, and changes below half of a weight's last bit are rounded away.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

EMA_FILE = "ema.safetensors"


def keep_in_float32(average: Any) -> None:
    """Before training. ZeRO stages 0 to 2: every process has all parameters."""
    for parameter in average.parameters():
        parameter.data = parameter.data.float()


@torch.no_grad()
def moving_average(actor: Any, average: Any, beta: float = 0.992, device: object = None) -> None:
    """As upstream (utils/deepspeed/deepspeed.py), once an optimizer step, but in float32 and wherever the average is."""
    if actor.model.micro_steps % actor.model.gradient_accumulation_steps():
        return
    for parameter, mean in zip(actor.parameters(), average.parameters(), strict=True):
        if parameter.requires_grad:
            mean.mul_(beta).add_(parameter.to(mean.device), alpha=1 - beta)


@contextmanager
def rounded(average: Any, model: Any) -> Iterator[None]:
    """While inside, the average has the precision of the ``model``'s weights, to be saved as a model."""
    exact = [parameter.data for parameter in average.parameters()]
    for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
        mean.data = mean.data.to(parameter.dtype)
    try:
        yield
    finally:
        for mean, data in zip(average.parameters(), exact, strict=True):
            mean.data = data


def save_ema(average: Any, file: str) -> None:
    """Save it unrounded, for resuming."""
    from safetensors.torch import save_file

    save_file({name: p.data.cpu().contiguous() for name, p in average.named_parameters()}, file)


def load_ema(average: Any, file: str) -> None:
    """Raises FileNotFoundError if the checkpoint was written without --train.enable_ema."""
    from safetensors.torch import load_file

    stored = load_file(file)
    for name, parameter in average.named_parameters():
        parameter.data.copy_(stored[name])
