"""Final answers of worked solutions, and kinds of answers."""

import pytest

from openrlhf_rpo.data.answers import EXTRACTIONS, after_hashes, guess_extraction, kind


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("9 eggs * 2 = 18\n#### 18", "18"),
        ("a\n#### 1\nb\n#### 2", "2"),
        ("so\n####  1,234,567 \n", "1234567"),
        ("a point\n#### (1,2)", "(1,2)"),
        ("a point\n#### 1,2345", "1,2345"),
        ("nothing behind it ####", ""),
        ("no mark", None),
    ],
)
def test_the_answer_behind_the_last_hashes(solution, answer):
    assert after_hashes(solution) == answer


def test_the_answer_in_the_last_box_is_taken_with_its_braces():
    assert EXTRACTIONS["boxed"](r"\boxed{1}, hence \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert EXTRACTIONS["boxed"]("no box") is None


def test_the_convention_of_most_rows_is_guessed():
    assert guess_extraction([r"\boxed{1}", r"\boxed{2}", "lost"]) == "boxed"
    assert guess_extraction(["a #### 1", "#### 2"]) == "gsm8k"
    assert guess_extraction(["1", r"\boxed{2}"]) == "none"  # half is not most
    assert guess_extraction([]) == "none"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "integer"),
        ("$-7$", "integer"),
        ("0.5", "decimal"),
        ("1/2", "fraction"),
        (r"\dfrac{-1}{2}", "fraction"),
        (r"\frac{\pi}{2}", "expression"),
        ("x", "expression"),
        ("(1, 2)", "expression"),
        ("Evelyn", "words"),
        (r"\text{even}", "words"),
    ],
)
def test_kinds_of_answers(answer, expected):
    assert kind(answer) == expected
