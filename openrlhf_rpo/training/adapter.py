"""Weight sync with a LoRA adapter: OpenRLHF would send peft's parameter names, which vLLM does not know.

Engines hold the whole model, so they get the base model's names and W + scale * B A for every adapted W (LoRA, arXiv
2106.09685). W itself is never changed: repeatedly merging and unmerging in half precision would degrade it.
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
    """W + scale * B A with the attributes of a parameter that a weight sync reads; computed each time ``data`` is read.

    The sync lists all parameters first, so computing them eagerly would put a second copy of the weights on every device.
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
    """The part of a model that a weight sync reads, with the adapter merged into the weights."""

    def __init__(self, model: PeftModel) -> None:
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, "torch.Tensor | MergedWeight"]]:
        """(name in the base model, tensor) of every weight; adapted ones are computed when their data is read."""
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
    """While inside, ``trainer.actor`` is the merged policy; a policy without an adapter is left alone."""
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
