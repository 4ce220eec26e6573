"""Laws of the loss mask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.loss_mask import loss_mask


@pytest.mark.parametrize(
    ("loss_from", "mask"),
    [
        (4, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]),
        (0, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        (2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
    ],
)
def test_worked_example(loss_from, mask):
    assert list(loss_mask(3, 7, loss_from)) == mask


@given(st.integers(0, 30), st.integers(1, 60), st.data())
def test_prompts_never_carry_loss_and_what_follows_always_does(prompt, path, data):
    loss_from = data.draw(st.integers(0, path - 1))
    mask = list(loss_mask(prompt, path, loss_from))
    assert len(mask) == prompt + path and sum(mask) == path - loss_from
    assert mask == sorted(mask) and mask[:prompt] == [0] * prompt


def test_action_mask_is_the_mask_shifted_by_one():
    """5 tokens give 4 predictions; the last two are of the response."""
    assert list(loss_mask(2, 3, 1)[1:]) == [0, 0, 1, 1]


@pytest.mark.parametrize("loss_from", [-1, 3, 4])
def test_a_sample_without_a_token_with_loss_is_refused(loss_from):
    with pytest.raises(ValueError, match=f"loss from token {loss_from} of a path of 3"):
        loss_mask(2, 3, loss_from)
