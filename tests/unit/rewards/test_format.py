import pytest

from openrlhf_rpo.rewards.format import format_reward


@pytest.mark.parametrize(
    "response",
    [
        "<think>\n1 + 1 is 2\n</think>\n\\boxed{2}",
        "1 + 1 is 2\n</think>\n\\boxed{2}",  # the template opened the block
        "<think></think>2",
        "<think>a</think>\n<answer>2</answer>",
    ],
)
def test_one_closed_thought_and_an_answer_is_worth_1(response):
    assert format_reward(response) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "\\boxed{2}",
        "<think>1 + 1 is",
        "<think>a</think>",
        "<think>a</think> \n",
        "<think>a</think><answer></answer>",
        "<think>a</think>b</think>c",
        "<think>a</think><think>b</think>c",
        "<think><think>a</think>b",
        "well <think>a</think>b",
    ],
)
def test_anything_else_is_worth_0(response):
    assert format_reward(response) == 0.0
