"""Laws of the loss mask and of the weights of prefix tokens."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.loss_mask import MODES, loss_mask, prefix_weights

LENGTH = st.integers(0, 30)
LOG_PROB = st.floats(-1e4, 0.0)
PAIRS = st.lists(st.tuples(LOG_PROB, LOG_PROB), max_size=20)


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


@given(LENGTH, LENGTH, LENGTH, st.sampled_from(MODES), st.booleans())
def test_prompts_never_and_responses_always_carry_loss(prompt, prefix, response, mode, known):
    mask = loss_mask(prompt, prefix, response, mode, known)
    assert len(mask) == prompt + prefix + response
    assert mask[:prompt] == [0] * prompt
    assert mask[prompt + prefix :] == [1] * response


@given(LENGTH, LENGTH)
def test_with_an_empty_prefix_all_modes_are_plain_grpo(prompt, response):
    masks = [loss_mask(prompt, 0, response, mode) for mode in MODES]
    assert masks == [[0] * prompt + [1] * response] * len(MODES)


def test_weighted_masks_a_prefix_whose_log_probs_are_not_known():
    assert loss_mask(1, 2, 1, "weighted", prefix_has_log_probs=False) == [0, 0, 0, 1]
    assert loss_mask(1, 2, 1, "include", prefix_has_log_probs=False) == [0, 1, 1, 1]


def test_action_mask_is_the_mask_shifted_by_one():
    """5 tokens give 4 predictions; the last two are of the response."""
    assert loss_mask(2, 1, 2, "mask")[1:] == [0, 0, 1, 1]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'prefix': expected mask, include, weighted, segment"):
        loss_mask(1, 1, 1, "prefix")


def test_weights_by_hand():
    now, then = [math.log(0.5), math.log(0.2), math.log(0.9)], [math.log(0.5), math.log(0.8), math.log(0.3)]
    assert prefix_weights(now, then, cap=1.0) == pytest.approx([1.0, 0.25, 1.0])
    assert prefix_weights(now, then, cap=2.0) == pytest.approx([1.0, 0.25, 2.0])
    assert prefix_weights(now, then, cap=10.0) == pytest.approx([1.0, 0.25, 3.0])


@given(PAIRS, st.floats(1e-3, 1e3))
def test_weights_stay_between_0_and_the_cap(pairs, cap):
    weights = prefix_weights([now for now, _ in pairs], [then for _, then in pairs], cap)
    assert len(weights) == len(pairs)
    assert all(0 <= weight <= cap * (1 + 1e-12) for weight in weights)


@given(st.lists(LOG_PROB, max_size=20))
def test_the_policy_that_stored_the_path_weighs_it_by_1(log_probs):
    assert prefix_weights(log_probs, log_probs, cap=1.0) == [1.0] * len(log_probs)


def test_log_probs_of_different_lengths_are_refused():
    with pytest.raises(ValueError):
        prefix_weights([-1.0, -1.0], [-1.0], cap=1.0)
