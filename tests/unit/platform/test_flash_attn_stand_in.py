"""Laws of the stand-in for flash_attn's padding functions."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testbed import model_dir
from openrlhf_rpo import platform
from openrlhf_rpo.platform.flash_attn_stand_in import all_gather, index_first_axis, pad_input, unpad_input

platform.prepare()

from openrlhf.models import Actor, get_llm_for_sequence_regression  # noqa: E402

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


def test_openrlhf_gets_it_and_nothing_else_ever_sees_it():
    """vLLM and transformers look for flash-attn by its name. Where it is installed, it is there again afterwards."""
    program = """
import sys
from importlib import machinery, util
from openrlhf_rpo.platform import flash_attn_stand_in
flash_attn_stand_in.install()
real = sys.modules["flash_attn"] = util.module_from_spec(machinery.ModuleSpec("flash_attn", None))
import openrlhf.models.ring_attn_utils as importer
print(importer.unpad_input is flash_attn_stand_in.unpad_input, importer.all_gather is flash_attn_stand_in.all_gather)
print(sys.modules.pop("flash_attn") is real, [name for name in sys.modules if name.startswith("flash_attn")])
print(util.find_spec("flash_attn"))
"""
    assert run(program) == ["True True", "True []", "None"]


def run(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-3:]  # DeepSpeed logs before them


@torch.no_grad()
@pytest.mark.parametrize("kind", ["actor", "critic", "reward"])
def test_packed_samples_in_torchs_attention_are_those_of_whole_rows(kind):
    """OpenRLHF packs for flash-attention; without it transformers finds the samples in their positions."""
    mask = mask_of([7, 3, 5])
    ids = torch.randint(5, 15, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    made = [forward(kind, ids, mask, packed) for packed in (False, True)]
    assert made[0].abs().max() > 1e-3
    torch.testing.assert_close(*made, atol=1e-5, rtol=0)


def forward(kind: str, ids: torch.Tensor, mask: torch.Tensor, packed: bool) -> torch.Tensor:
    """Log-probs (batch, length - 1), values (batch, length - 1) or rewards (batch,), zero where there is no token."""
    path = str(model_dir("main"))
    options = {"attn_implementation": "sdpa", "param_dtype": "fp32", "packing_samples": packed}
    torch.manual_seed(0)
    if kind == "actor":
        return Actor(path, **options)(ids, mask[:, 1:], attention_mask=mask)
    model = get_llm_for_sequence_regression(path, kind, init_value_head=True, **options)
    if kind == "critic":
        return model(ids, action_mask=mask[:, 1:], attention_mask=mask)
    return model(ids, attention_mask=mask)
