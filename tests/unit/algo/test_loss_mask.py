"""Laws of the loss mask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.loss_mask import MODES, loss_mask

LENGTH = st.integers(0, 30)


@pytest.mark.parametrize(
    ("mode", "mask"),
    [
        ("mask", [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]),
        ("include", [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        ("weighted", [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        ("segment", [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    ],
)
def test_worked_example(mode, mask):
    assert loss_mask(3, 4, 3, mode, segment_start=2) == mask


@given(LENGTH, LENGTH, LENGTH, st.sampled_from(MODES))
def test_prompts_never_and_responses_always_carry_loss(prompt, prefix, response, mode):
    mask = loss_mask(prompt, prefix, response, mode)
    assert len(mask) == prompt + prefix + response
    assert mask[:prompt] == [0] * prompt
    assert mask[prompt + prefix :] == [1] * response


@given(LENGTH, LENGTH)
def test_with_an_empty_prefix_all_modes_are_plain_grpo(prompt, response):
    masks = [loss_mask(prompt, 0, response, mode) for mode in MODES]
    assert masks == [[0] * prompt + [1] * response] * len(MODES)


def test_action_mask_is_the_mask_shifted_by_one():
    """5 tokens give 4 predictions; the last two are of the response."""
    assert loss_mask(2, 1, 2, "mask")[1:] == [0, 0, 1, 1]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'prefix': expected mask, include, weighted, segment"):
        loss_mask(1, 1, 1, "prefix")
