"""Plain torch versions of the flash_attn functions that ``openrlhf.models.ring_attn_utils`` imports.

Same signatures as flash-attn 2.8.3 (``bert_padding.py``). They support packed samples, but not ring attention, which needs
the real kernels.

Only that module sees them, and only while it is imported: vLLM, transformers and ``shared_prefix.attention`` look for
flash-attn by its name, and would assume its kernels are there.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

IMPORTER = "openrlhf.models.ring_attn_utils"


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


class _Finder:
    """Finds ``IMPORTER`` as usual, but with our loader."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == IMPORTER else None
        if spec is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        ours = stand_ins()
        real = {name: sys.modules.pop(name) for name in ours if name in sys.modules}
        sys.modules.update(ours)
        try:
            super().exec_module(module)
        finally:
            for name in ours:
                del sys.modules[name]
            sys.modules.update(real)


def install() -> None:
    """Give the stand-ins to ``IMPORTER``, whenever it is imported."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def stand_ins() -> dict[str, ModuleType]:
    """``flash_attn`` and the submodules that ``IMPORTER`` imports from."""

    def module(name: str, **names: Any) -> ModuleType:
        new = module_from_spec(ModuleSpec(name, None, is_package=True))
        vars(new).update(names)
        return new

    padding = {f.__name__: f for f in (index_first_axis, pad_input, unpad_input, rearrange)}
    made = [
        module("flash_attn"),
        module("flash_attn.utils"),
        module("flash_attn.bert_padding", **padding),
        module("flash_attn.utils.distributed", all_gather=all_gather),
    ]
    return {new.__name__: new for new in made}
