"""Laws of the stand-in for flash_attn's padding functions."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_rpo.platform.flash_attn_stand_in import all_gather, index_first_axis, install, pad_input, unpad_input

MASKS = st.integers(1, 4).flatmap(lambda batch: st.lists(st.integers(1, 6), min_size=batch, max_size=batch))


def mask_of(lengths):
    return torch.tensor([[int(i < n) for i in range(max(lengths))] for n in lengths])


def test_worked_example():
    states = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    rows, indices, cumulated, longest, lengths = unpad_input(states, torch.tensor([[1, 1, 0], [1, 1, 1]]))
    assert rows.tolist() == [[1.0], [2.0], [4.0], [5.0], [6.0]]
    assert indices.tolist() == [0, 1, 3, 4, 5]
    assert (cumulated.tolist(), cumulated.dtype) == ([0, 2, 5], torch.int32)
    assert (longest, lengths.tolist()) == (3, [2, 3])
    assert pad_input(rows, indices, 2, 3).tolist() == [[[1.0], [2.0], [0.0]], [[4.0], [5.0], [6.0]]]


@settings(deadline=None)
@given(MASKS, st.sampled_from([(), (2,), (2, 3)]))
def test_padding_what_was_unpadded_gives_it_back_with_zeros_elsewhere(lengths, trailing):
    mask = mask_of(lengths)
    states = torch.randn(*mask.shape, *trailing)
    rows, indices, cumulated, longest, _ = unpad_input(states, mask)
    assert len(rows) == sum(lengths) == cumulated[-1] and longest == max(lengths)
    back = pad_input(rows, indices, *mask.shape)
    keep = mask.reshape(*mask.shape, *([1] * len(trailing))).bool()
    assert torch.equal(back, torch.where(keep, states, torch.zeros(())))


def test_padding_carries_gradients():
    states = torch.ones(1, 3, 2, requires_grad=True)
    rows, indices, *_ = unpad_input(states, torch.tensor([[1, 1, 0]]))
    pad_input(2 * rows, indices, 1, 3).sum().backward()
    assert states.grad.tolist() == [[[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]]]


def test_index_first_axis_takes_rows():
    assert index_first_axis(torch.arange(6).view(3, 2), torch.tensor([2, 0])).tolist() == [[4, 5], [0, 1]]


def test_ring_attention_says_what_it_needs():
    with pytest.raises(RuntimeError, match="needs flash-attn and a GPU"):
        all_gather()


def test_it_never_takes_the_place_of_the_real_one():
    real = ModuleType("flash_attn")
    modules = {"flash_attn": real}
    install(modules)
    assert modules == {"flash_attn": real}


def test_installed_it_has_the_names_that_openrlhf_imports():
    modules: dict[str, ModuleType] = {}
    install(modules)
    for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input"):
        assert callable(getattr(modules["flash_attn.bert_padding"], name))
    assert callable(modules["flash_attn.utils.distributed"].all_gather)
    assert modules["flash_attn"].__spec__ is not None
