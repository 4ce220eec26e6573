"""What is kept, what is dropped, and on which side a question falls."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_rpo.data import prepare
from openrlhf_rpo.data.answers import EXTRACTIONS
from openrlhf_rpo.data.prepare import Dropped, Row

COLUMNS = ("q", "a", None)


def rows(*pairs):
    return [Row(number, question, answer) for number, (question, answer) in enumerate(pairs, 1)]


def many(n):
    return [Row(i, f"{i}+1?", str(i + 1)) for i in range(1, n + 1)]


# ── Reading and filters ──


def test_rows_without_a_question_or_an_answer_are_dropped_by_number():
    dropped = Dropped()
    raw = [{"q": "1+1?", "a": 2}, {"q": " ", "a": 2}, {"q": "x", "a": None}, {"q": "y", "a": ""}]
    assert prepare.read_rows(raw, COLUMNS, EXTRACTIONS["none"], dropped) == [Row(1, "1+1?", "2")]
    assert {reason: [number for number, _ in found] for reason, found in dropped.rows.items()} == {
        prepare.NO_QUESTION: [2],
        prepare.NO_ANSWER: [3, 4],
    }


def test_a_solution_that_lacks_its_answer_is_dropped_and_does_not_become_one():
    dropped = Dropped()
    raw = [{"q": "a", "a": r"so \boxed{1}"}, {"q": "b", "a": "so it is 2"}, {"q": "c", "a": r"so \boxed{"}]
    assert prepare.read_rows(raw, COLUMNS, EXTRACTIONS["boxed"], dropped) == [Row(1, "a", "1")]
    assert [number for number, _ in dropped.rows[prepare.NO_ANSWER]] == [2, 3]


def test_solutions_are_kept_beside_their_answers():
    [row] = prepare.read_rows([{"q": "a", "a": r"so \boxed{1}"}], ("q", "a", "a"), EXTRACTIONS["boxed"], Dropped())
    assert (row.answer, row.solution) == ("1", r"so \boxed{1}")


def test_labels_that_the_math_reward_cannot_parse_are_dropped_and_named():
    dropped = Dropped()
    kept = prepare.drop_unparsable(rows(("a", "1/2"), ("b", "!?"), ("c", r"\sqrt{2}")), dropped)
    assert [row.question for row in kept] == ["a", "c"]
    assert dropped.rows == {prepare.UNPARSABLE: [(2, "'!?'")]}


def test_duplicates_are_merged_white_space_aside_and_contradictions_counted_apart():
    dropped = Dropped()
    kept = prepare.merge_duplicates(rows(("1 + 1?", "2"), ("1  + 1?\n", "2"), ("1+1?", "2"), ("1 + 1?", "3")), dropped)
    assert [row.number for row in kept] == [1, 3]
    assert [number for number, _ in dropped.rows[prepare.DUPLICATE]] == [2]
    assert dropped.rows[prepare.CONTRADICTION] == [(4, "'3', row 1 says '2'")]


def test_prompts_of_exactly_the_longest_length_stay():
    dropped = Dropped()
    kept = prepare.drop_long(rows(("a", "1"), ("b", "2"), ("c", "3")), [4, 5, 6], 5, dropped)
    assert [row.question for row in kept] == ["a", "b"]
    assert dropped.rows == {prepare.TOO_LONG: [(3, "6 tokens")]}


# ── Held-out questions and samples ──


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 200), share=st.floats(0.01, 0.99), seed=st.integers(0, 5))
def test_every_question_is_on_one_side(n, share, seed):
    training, held_out = prepare.hold_out(many(n), share, seed)
    assert sorted(row.number for row in training + held_out) == list(range(1, n + 1))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 200), seed=st.integers(0, 5), shuffle=st.randoms(use_true_random=False))
def test_neither_order_nor_further_questions_nor_white_space_move_a_question(n, seed, shuffle: random.Random):
    before = {row.key for row in prepare.hold_out(many(n), 0.3, seed)[1]}
    questions = [f" {row.question}\n" for row in many(n + 50)]
    shuffle.shuffle(questions)
    grown = [Row(number, question, "1") for number, question in enumerate(questions, 1)]
    after = {row.key for row in prepare.hold_out(grown, 0.3, seed)[1]}
    assert after & {row.key for row in many(n)} == before


def test_the_share_holds_and_the_seed_matters():
    held_out = [{row.number for row in prepare.hold_out(many(2000), 0.1, seed)[1]} for seed in (0, 1)]
    assert all(150 <= len(numbers) <= 250 for numbers in held_out)  # 200 +- 3.7 standard deviations of 13.4
    assert len(held_out[0] & held_out[1]) < 50  # 20 expected of two independent draws


def test_a_smaller_sample_is_part_of_a_larger_one_and_keeps_the_order():
    small, large = ([row.number for row in prepare.sample(many(100), n, seed=0)] for n in (10, 40))
    assert len(small) == 10 and len(large) == 40
    assert set(small) < set(large) and small == sorted(small)
    assert small != [row.number for row in prepare.sample(many(100), 10, seed=1)]


def test_the_sample_does_not_follow_the_held_out_draw():
    """Were both draws one, the rows nearest to the held-out ones would always be sampled first."""
    by_held_out = [row.number for row in prepare.hold_out(many(1000), 0.1, 0)[1]]
    assert len(set(by_held_out) & {row.number for row in prepare.sample(many(1000), 100, 0)}) < 30  # 10 expected
