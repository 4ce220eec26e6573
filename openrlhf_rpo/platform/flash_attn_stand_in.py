"""Plain torch versions of the flash_attn functions that ``openrlhf.models.ring_attn_utils`` imports.

Same signatures as flash-attn 2.8.3 (``bert_padding.py``). They support packed samples, but not ring attention, which needs
the real kernels.
"""

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """(N, ...), (M,) -> (M, ...): the rows at ``indices``."""
    return tensor[indices]


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """(M, ...) -> (batch, seqlen, ...): unpack rows, with zeros elsewhere."""
    output = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    output[indices] = hidden_states
    return output.view(batch, seqlen, *hidden_states.shape[1:])


def unpad_input(hidden_states: Any, attention_mask: Any) -> tuple[Any, Any, Any, int, Any]:
    """(batch, seqlen, ...) -> packed rows (M, ...), their indices, cumulative lengths, the maximum length, lengths."""
    import torch
    import torch.nn.functional as F

    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    cumulated = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    flat = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return flat[indices], indices, cumulated, int(lengths.max()), lengths


def rearrange(*args: Any, **kwargs: Any) -> Any:
    import einops

    return einops.rearrange(*args, **kwargs)


def all_gather(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("ring attention (--ds.ring_attn_size > 1) needs flash-attn and a GPU")


def install(modules: dict[str, ModuleType]) -> None:
    """Register ``flash_attn`` and its submodules, unless the real one is loaded."""
    if "flash_attn" in modules:
        return

    def module(name: str, is_package: bool, **names: Any) -> None:
        new = ModuleType(name)
        new.__spec__ = ModuleSpec(name, loader=None, is_package=is_package)
        if is_package:
            new.__path__ = []
        vars(new).update(names)
        modules[name] = new

    module("flash_attn", True)
    module("flash_attn.utils", True)
    module(
        "flash_attn.bert_padding",
        False,
        index_first_axis=index_first_axis,
        pad_input=pad_input,
        unpad_input=unpad_input,
        rearrange=rearrange,
    )
    module("flash_attn.utils.distributed", False, all_gather=all_gather)
