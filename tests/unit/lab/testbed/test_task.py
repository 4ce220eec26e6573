"""Laws of the testbed's task."""

import json
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.testbed import LEVELS, write_dataset
from lab.testbed.task import (
    CAREFUL,
    Question,
    WrittenStep,
    answer,
    boxed,
    demonstrate,
    draw_split,
    is_heldout,
    parse_question,
    scratch,
    written_steps,
    wrong_steps,
)

QUESTIONS = st.builds(Question, st.integers(2, 14), st.integers(0, 99), st.integers(0, 99), st.sampled_from("+-")).map(str)
HABITS = st.sampled_from([level.habits for level in LEVELS.values()])

WORKED = "c97+53 7+3=10 9+5+1=5 50\nb53+50=03\na50+03 0+3=03 5+0+0=5 53\n\\boxed{0353}"


def test_worked_example_is_right():
    assert answer("c97+53?") == "0353"
    assert boxed(WORKED) == "0353"
    assert wrong_steps("c97+53?", WORKED) == []


def test_borrowing_is_written_out():
    assert scratch(3, "-", 7) == "3-7=16 0-0-1=9"  # 3 - 7 = 96 modulo 100


def test_inherited_mistake_is_charged_to_the_step_that_made_it():
    carried_on = WORKED.replace("=03\na50+03 0+3=03 5+0+0=5 53", "=13\na50+13 0+3=03 5+1+0=6 63").replace("0353", "1363")
    assert wrong_steps("c97+53?", carried_on) == [1]


def test_wrong_scratch_miscopied_operand_missing_and_surplus_lines_are_wrong():
    assert wrong_steps("c97+53?", WORKED.replace("7+3=10", "7+3=00")) == [0]
    assert wrong_steps("c97+53?", WORKED.replace("b53+50", "b53+60")) == [1, 2]
    assert wrong_steps("c97+53?", WORKED.split("a50")[0] + "\\boxed{5003}") == [2]
    assert wrong_steps("b97+53?", WORKED) == [0, 1, 2]


@given(QUESTIONS)
def test_text_of_a_question_parses_back(question):
    assert str(parse_question(question)) == question


@pytest.mark.parametrize("text", ["", "f97+53", "f9+53?", "f97*53?", "f97+53?\n"])
def test_what_is_no_question_is_refused(text):
    with pytest.raises(ValueError, match="not a question"):
        parse_question(text)


@given(QUESTIONS, st.randoms(use_true_random=False))
def test_careful_demonstrations_check_themselves(question, rng):
    response = demonstrate(question, CAREFUL, rng)
    assert wrong_steps(question, response) == []
    assert boxed(response) == answer(question)


@given(QUESTIONS, HABITS, st.randoms(use_true_random=False))
def test_no_single_wrong_step_leads_to_the_right_answer(question, habits, rng):
    response = demonstrate(question, habits, rng)
    n_wrong = len(wrong_steps(question, response))
    if n_wrong == 0:
        assert boxed(response) == answer(question)
    if n_wrong == 1:
        assert boxed(response) != answer(question)


@given(QUESTIONS, HABITS, st.randoms(use_true_random=False))
def test_the_steps_of_a_demonstration_are_right_where_it_is(question, habits, rng):
    response = demonstrate(question, habits, rng)
    steps = written_steps(response, habits)
    assert len(steps) == parse_question(question).steps
    assert [i for i, step in enumerate(steps) if not step.right] == wrong_steps(question, response)


def test_a_step_is_judged_by_its_own_values_and_its_kind_by_the_second_one():
    """Hasty: ends in 0 or 5. A trap: 7 tens and a carry. A slip in a full step; a forgotten carry; a line of words."""
    response = "f97+55=52\ne58+73 8+3=11 5+7+1=3 30\nd23+70=93\nc08+75=73\nwell\n\\boxed{0000}"
    assert written_steps(response, LEVELS["main"].habits) == [
        WrittenStep("hasty", True, True),
        WrittenStep("trap", False, False),
        WrittenStep("hasty", True, True),
        WrittenStep("trap", True, False),
    ]


@given(QUESTIONS, HABITS, st.integers(0, 2**32))
def test_a_seed_decides_the_demonstration(question, habits, seed):
    assert demonstrate(question, habits, random.Random(seed)) == demonstrate(question, habits, random.Random(seed))


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_splits_never_meet_whatever_the_seeds(level):
    train = {q for seed in range(3) for q in draw_split(level, 2000, seed, heldout=False)}
    heldout = {q for seed in range(3) for q in draw_split(level, 500, seed, heldout=True)}
    assert not train & heldout
    assert all(map(is_heldout, heldout))
    assert not any(map(is_heldout, train))


def test_one_question_in_eight_is_held_out():
    questions = [str(Question(9, u, v, op)) for u in range(100) for v in range(100) for op in "+-"]
    assert sum(map(is_heldout, questions)) / len(questions) == pytest.approx(1 / 8, abs=0.01)


def test_a_split_too_small_is_refused():
    with pytest.raises(ValueError, match="can be drawn"):
        draw_split("main", 100_000, 0, heldout=True)


def test_dataset_files_are_deterministic_and_hold_the_labels(tmp_path):
    first = write_dataset("main", tmp_path / "a", 50, 20, seed=3)
    again = write_dataset("main", tmp_path / "b", 50, 20, seed=3)
    other = write_dataset("main", tmp_path / "c", 50, 20, seed=4)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    assert first[0].read_bytes() != other[0].read_bytes()
    for path, n in zip(first, (50, 20), strict=True):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert len({r["question"] for r in records}) == n
        assert all(set(r) == {"question", "answer"} and r["answer"] == answer(r["question"]) for r in records)


def test_further_held_out_questions_are_others(tmp_path):
    first, further = (write_dataset("main", tmp_path / str(n), 4, 8, seed=0, n_before=n)[1].read_text() for n in (0, 8))
    both = write_dataset("main", tmp_path / "both", 4, 16, seed=0)[1].read_text()
    assert first + further == both and len(set(both.splitlines())) == 16


def test_package_needs_neither_torch_nor_transformers():
    code = "import sys, lab.testbed as t; t.model_dir('main'); print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
