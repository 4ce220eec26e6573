import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.rewards import math as math_module
from openrlhf_rpo.rewards.math import last_boxed, math_reward, parses, unparsable


@pytest.mark.parametrize(
    ("response", "label"),
    [
        (r"so \boxed{42}", "42"),
        (r"so \boxed{ 42 }.<|im_end|>", "42"),
        (r"\boxed{\frac{84}{2}}", "42"),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{\frac12}", r"$\frac{1}{2}$"),
        (r"\boxed{3,000}", "3000"),
        (r"\boxed{x=5}", "5"),
        (r"\boxed{42.}", "42"),
        (r"\boxed{0.5.}", "0.5"),
        (r"\boxed{(1,2)}", "(1, 2)"),
        (r"\boxed{42}", r"\boxed{42}"),
        (r"\boxed{42}", "#### 42"),
        ("The final answer is $42$.", "42"),
        ("the answer is 42", "42"),
        (r"\boxed{Monday}", "Monday"),
        (r"\boxed{12\,345}", "12345"),
        (r"\boxed{1\ 000\ 000}", "$1000000$"),
        (r"\boxed{1000}", r"1\,000"),
        (r"\boxed{4.5 \times 10^{33}}", "4.5e33"),
        (r"\boxed{7.5e7}", "75000000"),
        (r"\boxed{6 \cdot 10^{-7}}", "6e-7"),
        (r"\boxed{2e - 3}", "2e-3"),  # Euler's number
        (r"\boxed{0.333333}", r"\frac{1}{3}"),
        (r"\boxed{\approx 3.14}", "3.14"),
        (r"\boxed{1 \times 10^{-7}}", r"\frac{1}{10^7}"),
        (r"\boxed{0.0000000715}", r"\frac{1}{13983816}"),
        (r"\boxed{50}", r"50\%"),
        ("42, I think. **Answer:** 42", "42"),
        ("**Answer: 42**", "42"),
        ("**Final Answer**\n\n$42$", "42"),
        ("Answer:\n\n42", "42"),
        ("<think>6 * 7</think><answer> 42 </answer>", "42"),
        ("6 * 7 makes\n#### 42\n", "42"),
        ("The answer is **42**.", "42"),
        ("The answer should be 42 apples.", "42"),
        ("The answer is 6 * 7 = 42.", "42"),
        ("The answer is x = 42.", "42"),
        ("The answer is -3.5.", "-3.5"),
        ("The answer is \\(\\frac{1}{2}\\), as 3 = 3.", "0.5"),
        ("The answer is $12\\,345$.", "12345"),
        ("The final answer is 42, where x = 3.", "42"),
        ("The final answer is: 42 (a = 6, b = 7).", "42"),
        ("The answer is 42.\n\nCheck: $x = 3$ works.", "42"),
        ("The answer is 42. I am confident this answer is correct.", "42"),
        ("The answer is $18.", "18"),
        ("The answer is 12.5%.", r"12.5\%"),
        ("The answer is 50%", "0.5"),
        ("The answer is:\n\\[\n\\frac{1}{2}\n\\]", "0.5"),
        (r"The answer is \frac{1}{2}.", "0.5"),
        ("(So the answer is 42.)", "42"),
        ("The answer is 42.\n\nTo verify the answer:\n\n1. Multiply 6 by 7", "42"),
        ("The answer is $2$ and $3$.", "2, 3"),
        ("The answer is (1, 2).", "(1, 2)"),
        ("The answer is 2, 3.", "2, 3"),
        ("The answer is 1,234.", "1234"),
        ("The answer is x = 5 because 5 + 2 = 7.", "5"),
        ("The answer is:\n\n12.\n\nThis follows from it.", "12"),
        ("<answer>\n42.\nSo there</answer>", "42"),
        (r"The answer is $3\sqrt{2} \; \text{cm}$.", r"3\sqrt{2}"),
        ("The answer is $\n42\n$.", "42"),
        ("The answer is therefore\n\n$$42$$", "42"),
        ("The answer is 42, because " + "of this and " * 40, "42"),
        (r"The answer is $\approx \frac{1}{3}$", r"\frac{1}{3}"),
        ("The answer is $18, which is $3 more.", "18"),
        ("Answer: 42\n\nI verified the answer: it is right.", "42"),
        ("The answer to the first question is 7. So the answer is thus 42.", "42"),
        ("The answer is 2x + 3.", "2x+3"),
        (r"The answer is 3\sqrt{2}.", r"3\sqrt{2}"),
        ("The answer is 6*7=42.", "42"),
        ("The answer is 12 x 5 = 60.", "60"),
        ("The answer is 12.5 km/h.", "12.5"),
        ("**Answer:** Natalia sold 72 clips.", "72"),
        ("The answer is approximately 3.14.", "3.14"),
        ("The answer is €42.", "42"),
        ("The answer is 18 a day.", "18"),
        ("The answer is 42, a prime number.", "42"),
        ("The answer is 3 L.", "3"),
        (r"\boxed{\frac{9}{16}}", "9:16"),
        ("The answer is **ACB**.", "ACB"),
        (r"The answer is \(3:30\). I verified the answer: it is right.", "3:30"),
        ("The answer is 1/2.", "0.5"),
        ("The answer is 5 because 2+3=5.", "5"),
        ("Answer: B", "B"),
        ("The answer is (B).", "B"),
        (r"$\boxed{1}$ and $\boxed{-5}$", "1, -5"),
        (r"\boxed{42}, \boxed{42}", "42"),
        (r"\boxed{\text{2020-01-02}}", "2020-01-02"),
        ("The answer is 2020-01-02.", "2020-01-02"),
        (r"\boxed{3:30}", "$3:30$"),
        (r"\boxed{A C B}", "ACB"),
        (r"\boxed{5 \text{ feet } 3 \text{ inches}}", r"5 \text{ feet } 3 \text{ inches}"),
        (r"\boxed{yx}", "xy"),
    ],
)
def test_an_equal_answer_is_worth_1(response, label):
    assert math_reward(response, label) == 1.0


@pytest.mark.parametrize(
    ("response", "label"),
    [
        (r"\boxed{41}", "42"),
        ("", "42"),
        ("I bought 42 apples and then", "42"),  # a truncated response holds numbers, not an answer
        ("To check the answer, note that there are 42 apples and", "42"),
        ("The answer is 42. No: the answer is 41", "42"),
        ("The final answer is 42, where x = 3.", "3"),
        ("That is not the answer. 42 apples", "42"),
        ("#### 42. Solve the rest\nThis is", "42"),
        ("The answer is not 42", "42"),
        ("The answer is 36. Wait, corners count twice. The answer is $32.", "36"),
        ("The answer is 36. <answer>\\frac{1}{2}</answer>", "36"),
        ("The answer is 36. <answer>x+1</answer>", "36"),
        ("Let me find the answer\n1. First, add", "1"),
        ("The answer is $2$ or $3$", "2"),
        ("The answer is (1, 2).", "2"),
        ("The answer is 2, 3.", "2"),
        ("The answer is x = 5 because 5 + 2 = 7.", "7"),
        ("The answer is $5! = 120$.", "5"),
        ("The answer is 2x + 3.", "2"),
        (r"The answer is 3\sqrt{2}.", "3"),
        ("The answer is 6*7=42.", "6"),
        ("The answer is 12 x 5 = 60.", "12"),
        ("The answer is 2 or 3.", "2"),
        ("The answer is (C).", "B"),
        (r"\boxed{1} and \boxed{-5}", "-5"),
        (r"\boxed{2020-02-01}", "2020-01-02"),
        (r"\boxed{2017}", "2020-01-02"),
        ("The answer is 2017.", "2020-01-02"),
        (r"\boxed{2:20}", "3:30"),
        (r"\boxed{ABC}", "ACB"),
        (r"\boxed{5 \text{ feet } 9 \text{ inches}}", r"5 \text{ feet } 3 \text{ inches}"),
        (r"\boxed{42", "42"),
        (r"\boxed{}", "42"),
        (r"\boxed{}", ""),
        (r"\boxed{42}, no: \boxed{41}", "42"),
        (r"\boxed{42", "never parsed: ???"),
        (r"\boxed{42}", ""),
        (r"\boxed{10\,000}", "0"),
        (r"\boxed{0.0000001}", "0.0000005"),
        (r"\boxed{1.7 \times 10^{-19}}", r"$1.6 \times 10^{-19}$"),
        (r"\boxed{1e-7}", "0"),
        (r"\boxed{0.0}", r"\frac{1}{13983816}"),
        (r"\boxed{0.0}", r"p = \frac{1}{13983816}"),
        (r"\boxed{0.0000001}", r"\frac{1}{13983816}"),
        (r"\boxed{\frac{1}{2^{70}}}", r"\frac{1}{2^{60}}"),
        (r"\boxed{10^{-20}}", r"1.6 \times 10^{-19}"),
    ],
)
def test_no_or_another_answer_is_worth_0(response, label):
    assert math_reward(response, label) == 0.0


def test_the_last_box_is_the_answer():
    assert math_reward(r"\boxed{41} then \boxed{42}", "42") == 1.0


def test_a_label_that_was_not_parsed_in_time_is_parsed_again(monkeypatch):
    with monkeypatch.context() as slow:
        slow.setattr(math_module, "parse", lambda *_, **__: [])
        assert not parses("20260142")
    assert parses("20260142")


def test_equal_text_needs_no_math_verify(monkeypatch):
    monkeypatch.setattr(math_module, "parse", lambda *_, **__: pytest.fail("parsed"))
    assert math_reward(r"\boxed{\text{no such} \formula{}}", r" \text{no such} \formula{} ") == 1.0


def test_works_outside_the_main_thread():
    rewards = []
    thread = threading.Thread(target=lambda: rewards.append(math_reward(r"\boxed{\frac{84}{2}}", "42")))
    thread.start()
    thread.join()
    assert rewards == [1.0]


def test_an_answer_too_large_to_compare_is_worth_0(monkeypatch):
    monkeypatch.setattr(math_module, "_SECONDS", 1)
    assert math_reward(r"\boxed{9^{9^{9}}}", "42") == 0.0


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "answer", ["1" * 200_000 + "x", "1 " + "000 " * 50_000 + "0000", "1" * 200_000 + "e", "1e9999", "1e-9999"]
)
def test_an_answer_of_many_digits_is_read_in_time(answer):
    assert math_reward(f"\\boxed{{{answer}}}", "4.5e33") == 0.0


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part", ["\n ", "*", " ", "answer is \\(", "answer to ", "answer is $x", "answer is 1=", "#### 1\n", "1+"]
)
def test_no_response_makes_the_search_for_an_answer_long(part):
    assert math_reward("the answer" + part * 50_000, "42") == 0.0


def test_a_long_response_without_an_answer_is_worth_0():
    assert math_reward("We have $x^2$ and 3+4=7, so \\(y\\) is. Wait, " * 3000, "42") == 0.0


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers_are_right_exactly_when_equal(answer, label):
    assert math_reward(f"\\boxed{{{answer}}}", str(label)) == float(answer == label)


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "\\{", "\\", "4", " "]), max_size=12).map("".join))
def test_any_text_has_a_box_or_none_and_a_reward(text):
    box = last_boxed(text)
    assert (box is None) == ("\\boxed{" not in text)
    assert math_reward(text, "4") in (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\begin{matrix}1\\{2}\end{matrix}} and {5}", r"\begin{matrix}1\\{2}\end{matrix}"),
        ("none", None),
        (r"\boxed{\frac{1}{2}", ""),
    ],
)
def test_a_box_ends_at_its_own_brace(text, box):
    assert last_boxed(text) == box


def test_unparsable_labels_are_named_by_position():
    assert unparsable(["42", "", r"\frac12", "???", r"$\frac12$", "#### 42", r"\frac{"]) == [1, 3, 6]
    assert parses("10%") and not parses("  ")
