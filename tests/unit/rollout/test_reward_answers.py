"""What a user's reward function or server may answer."""

import numpy as np
import pytest
import torch

from openrlhf_rpo.rollout.reward_call import LARGEST, last_line, read_answer


@pytest.mark.parametrize(
    "value", [0.5, [0.5], (0.5,), torch.tensor(0.5), torch.tensor([0.5]), [torch.tensor([[0.5]])], np.float32(0.5)]
)
def test_one_number_in_any_of_its_clothes(value):
    result = read_answer({"rewards": value})
    assert (result.reward, result.score, result.extra, result.failure) == (0.5, 0.5, {}, None)


def test_scores_are_apart_from_rewards_and_default_to_them():
    assert read_answer({"rewards": [0.5], "scores": [True]}).score == 1.0
    assert read_answer({"rewards": [0.5], "scores": None}).score == 0.5


def test_extra_logs_become_numbers():
    assert read_answer({"rewards": 1, "extra_logs": {"a": torch.tensor([2.0]), "b": 3}}).extra == {"a": 2.0, "b": 3.0}
    assert read_answer({"rewards": 1, "extra_logs": None}).extra == {}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_a_log_that_is_not_finite_is_left_out_and_costs_no_reward(number):
    """The mean of inf and -inf, or of two logs of 1e308, would end the run in its commit."""
    result = read_answer({"rewards": 1, "extra_logs": {"a": number, "b": -LARGEST}})
    assert (result.reward, result.extra) == (1.0, {"b": -LARGEST})


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "not NoneType"),
        ([0.5], "not list"),
        ({"reward": 0.5}, "no 'rewards' among the keys ['reward']"),
        ({"rewards": None}, "'rewards' is not a number but NoneType"),
        ({"rewards": "0.5"}, "'rewards' is not a number but str"),
        ({"rewards": float("nan")}, "'rewards' is nan, not a finite number"),
        ({"rewards": 1, "scores": float("inf")}, "'scores' is inf, not a finite number"),
        ({"rewards": 1e308}, "'rewards' is 1e+308, not a finite number of float32"),
        ({"rewards": []}, "'rewards' holds 0 values for one query"),
        ({"rewards": torch.tensor([1.0, 0.0])}, "'rewards' holds 2 values for one query"),
        ({"rewards": 1, "extra_logs": [1]}, "'extra_logs' must be a dict, not list"),
        ({"rewards": 1, "extra_logs": {"a": "b"}}, "'a' is not a number but str"),
    ],
)
def test_anything_else_is_an_error_that_says_what_came(answer, cause):
    with pytest.raises(ValueError) as caught:
        read_answer(answer)
    assert cause in str(caught.value)


def test_a_cause_is_one_short_line():
    assert last_line(ValueError("a\n  b")) == "ValueError: a b"
    assert last_line(KeyError()) == "KeyError"
    assert len(last_line(ValueError("x" * 1000))) == 300
