"""A LoRA adapter on the way to the engines: OpenRLHF sends the names that peft gives, which vLLM does not know.

The engines hold whole models. What they are sent are the names of the base model and W + scale * B A in the place of every
adapted W (LoRA, arXiv 2106.09685). W itself stays as it is: merging and taking back in half precision would wear it away.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

_WRAPPER = "base_model.model."
_BASE = ".base_layer."


class MergedWeight:
    """W + scale * B A, what a weight sync asks of a parameter; the sum lives as long as who asked for ``data`` keeps it.

    The sync first lists all parameters: made at once, a second copy of the weights would lie on every device.
    """

    requires_grad = True

    def __init__(self, weight: torch.Tensor, layer: LoraLayer) -> None:
        self.weight, self.layer = weight, layer
        self.dtype, self.shape = weight.dtype, weight.shape

    @property
    @torch.no_grad()
    def data(self) -> torch.Tensor:
        delta = sum(self.layer.get_delta_weight(adapter) for adapter in self.layer.active_adapters)
        return self.weight + delta.to(self.dtype)


class MergedModel:
    """What a weight sync asks of a model, with the adapter inside the weights."""

    def __init__(self, model: PeftModel) -> None:
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, "torch.Tensor | MergedWeight"]]:
        """(the base model's name, tensor of its shape) of every weight; an adapted one is made when its data is read."""
        layers = {name: m for name, m in self.model.named_modules() if isinstance(m, LoraLayer)}
        adapters = {id(p) for layer in layers.values() for n, p in layer.named_parameters() if n.startswith("lora_")}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in adapters:
                continue
            owner, found, rest = name.rpartition(_BASE)
            plain = f"{owner}.{rest}" if found else name
            adapted = found and rest == "weight"
            yield plain.removeprefix(_WRAPPER), MergedWeight(parameter.data, layers[owner]) if adapted else parameter.data


@contextmanager
def merged_adapter(trainer: Any) -> Iterator[None]:
    """Inside, ``trainer.actor`` is the policy as the engines know it; a policy without adapter stays as it is."""
    actor = trainer.actor
    model = actor.model.module
    if not isinstance(model, PeftModel):
        yield
        return
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=MergedModel(model)))
    try:
        yield
    finally:
        trainer.actor = actor
