import pytest

from openrlhf_rpo.rewards import SHIPPED, weighted_sum
from openrlhf_rpo.rewards.math_file import reward_func

GOOD = "<think>a</think>\\boxed{42}"


def test_one_reward_of_weight_1_is_itself():
    assert weighted_sum("math")(GOOD, "42", 10) == (1.0, 1.0)
    assert weighted_sum("format")("\\boxed{42}", "42", 10) == (0.0, 0.0)


def test_the_terms_add_up_with_their_weights():
    # 2 * 1 (math) + 0.5 * 1 (format) + 1 * 0.75 (cosine at half of 1000 tokens)
    assert weighted_sum("math, format,cosine", "2,0.5,1")(GOOD, "42", 500) == (pytest.approx(3.25), 1.0)


@pytest.mark.parametrize("functions", ["math", "cosine", "format,cosine", "math,format"])
def test_the_score_is_the_accuracy_whatever_the_reward(functions):
    function = weighted_sum(functions)
    assert function(GOOD, "42", 500)[1] == 1.0
    assert function(GOOD, "41", 500)[1] == 0.0


def test_without_an_accuracy_the_score_is_the_reward():
    assert weighted_sum("format", "0.25")(GOOD, "42", 500) == (0.25, 0.25)


@pytest.mark.parametrize(
    "end", ["", "</s>", "<|im_end|>", "<eos>\n", "<|end|><|endoftext|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
)
def test_the_file_for_plain_openrlhf_judges_the_text_without_its_special_tokens(end):
    assert reward_func([f"q: The answer is 1/2{end}"], ["q: "], ["1/2"])["rewards"] == 1.0


def test_lengths_are_tokens_not_words():
    """Defect 3 of the reference: the cosine must follow the tokens it is told, whatever the text looks like."""
    one_word, many_words = "\\boxed{42}", "word " * 900 + "\\boxed{42}"
    function = weighted_sum("cosine")
    assert function(one_word, "42", 1000) == function(many_words, "42", 1000) == (0.5, 1.0)
    assert function(one_word, "42", 0) == function(many_words, "42", 0) == (1.0, 1.0)


def test_an_unknown_reward_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown reward 'accuracy'; the shipped rewards are math, format, cosine"):
        weighted_sum("math,accuracy")
    assert list(SHIPPED) == ["math", "format", "cosine"]


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,x", "1,nan", ""])
def test_weights_that_do_not_fit_are_refused(weights):
    with pytest.raises(ValueError, match="reward weights"):
        weighted_sum("math,format", weights)


def test_plain_openrlhf_can_load_the_math_reward_as_a_file():
    assert reward_func(["Q: \\boxed{1}? \\boxed{42}"], ["Q: \\boxed{1}? "], ["42"]) == {"rewards": 1.0, "scores": 1.0}


def test_the_length_at_which_the_cosine_ends_is_an_option():
    assert weighted_sum("cosine", None, 4000)("\\boxed{42}", "42", 2000) == (pytest.approx(0.75), 1.0)
