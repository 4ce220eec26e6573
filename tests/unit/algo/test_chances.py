"""What questions still teach, against the definition and in runs that learn."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.chances import PRIOR, Chances
from openrlhf_rpo.types import Visit

ROUNDING = 1e-9


def visit(name, step, right, n=8, tokens=80):
    return Visit(name, step, 0, 0, 10, n, right, "every", n_tokens=tokens)


def test_worked_example():
    """Two visits at the same rate of the run, one epoch apart: the older one counts half."""
    chances = Chances(epoch=10)
    chances.add([visit("q", 1, 8)])
    chances.add([visit("q", 11, 0)])
    run = 4 / 8  # 8 rewarded halved, of 8 halved and 8: with one of each more, (4 + 1) / (12 + 2)
    run = (8 * run + 1) / (8 * run + 8 + 2)
    assert chances.chance("q", 11) == pytest.approx((PRIOR * run + 4) / (PRIOR + 12))
    a, b = PRIOR * run + 4, PRIOR * (1 - run) + 8
    tokens = (PRIOR * (120 + 1) / (12 + 1) + 120) / (PRIOR + 12)
    assert chances.worth("q", 11) == pytest.approx(a * b / ((a + b) * (a + b + 1)) / tokens)


def test_half_right_is_worth_more_than_all_right_or_all_wrong():
    chances = Chances(epoch=4)
    chances.add([visit("right", 1, 8), visit("half", 1, 4), visit("wrong", 1, 0)])
    assert chances.best(3, ["right", "wrong", "half"], 2)[0] == "half"
    assert chances.worth("half", 2) > 1.2 * max(chances.worth("right", 2), chances.worth("wrong", 2))


def test_of_equal_signal_the_shorter_answers_are_worth_more():
    chances = Chances(epoch=4)
    chances.add([visit("long", 1, 4, tokens=800), visit("short", 1, 4, tokens=80)])
    assert chances.best(2, ["long", "short"], 2) == ["short", "long"]


def test_what_is_long_ago_is_forgotten():
    chances = Chances(epoch=4)
    chances.add([visit("q", 1, 8), *(visit(f"other {i}", 1, 0) for i in range(9))])
    after = [chances.chance("q", step) for step in (1, 5, 9, 400)]
    assert after == sorted(after, reverse=True)
    assert after[-1] == pytest.approx(chances.chance("never asked", 400))


def test_a_question_rests_after_a_visit():
    chances = Chances(epoch=80)
    chances.add([visit("q", 5, 4)])
    assert chances.best(1, ["q"], 15) == [] and chances.best(1, ["q"], 16) == ["q"]


def test_equals_come_in_the_order_given():
    assert Chances(epoch=4).best(2, ["c", "a", "b"], 1) == ["c", "a"]


groups = st.tuples(st.integers(0, 8), st.integers(0, 10**6))
histories = st.dictionaries(st.tuples(st.sampled_from("abcd"), st.integers(1, 30)), groups, max_size=30)


@given(histories, st.floats(0.1, 1e6), st.randoms())
def test_estimates_are_in_range_and_the_same_after_a_resume(history, epoch, order):
    """A run learns step by step, a resumed one from the whole history, in whatever order the rows come."""
    rows = [visit(name, step, right, tokens=tokens) for (name, step), (right, tokens) in history.items()]
    resumed, lived = Chances(epoch), Chances(epoch)
    resumed.add(order.sample(rows, len(rows)))
    for step in sorted({row.step for row in rows}):
        lived.add(row for row in rows if row.step == step)
    for name in "abcde":
        assert 0 < resumed.chance(name, 31) < 1 and 0 < resumed.worth(name, 31) <= 0.25 + ROUNDING
        assert (resumed.chance(name, 31), resumed.worth(name, 31)) == (lived.chance(name, 31), lived.worth(name, 31))


def test_of_questions_of_every_difficulty_it_finds_those_that_teach():
    """60 questions, 5 a step: the groups that it chooses are mixed far more often than those in turn."""
    draws = random.Random(0)
    rates = {f"q{i}": min(1.0, max(0.0, draws.gauss(0.5, 0.6))) for i in range(60)}

    def ask(names, step):
        return [visit(name, step, sum(draws.random() < rates[name] for _ in range(8))) for name in names]

    chances, mixed = Chances(epoch=12), []
    for step in range(1, 61):
        some = ask(chances.best(5, sorted(rates), step), step)
        chances.add(some)
        mixed += [0 < v.n_rewarded < 8 for v in some if step > 24]
    in_turn = [0 < v.n_rewarded < 8 for _ in range(3) for v in ask(sorted(rates), 1)]
    assert fmean(mixed) > 1.3 * fmean(in_turn)
