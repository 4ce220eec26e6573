"""Which questions a step asks: by turn, by age."""

import pytest

from openrlhf_rpo.algo.methods import RPO, Off
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.rollout.questions import QuestionStream
from openrlhf_rpo.rollout.selection import Selection
from openrlhf_rpo.types import Begun, CacheDecision, Path, Prefix, Question, Sample, StepRecord, Visit

QUESTIONS = [Question(f"q{i:02}", f"{i}?", "1") for i in range(16)]


@pytest.fixture
def cache(tmp_path):
    with PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}) as made:
        made.mark_initialised()
        yield made


@pytest.fixture
def run(cache):
    """``steps(a, b)`` commits steps of 4 questions."""

    def make(method):
        stream = QuestionStream(QUESTIONS, seed=3, episodes=9)
        selection = Selection(stream, cache, method)

        def steps(first, last):
            asked = {}
            for step in range(first, last + 1):
                asked[step] = selection.choose(4, set(), step)
                decisions = [decision(one, step) for one in asked[step]]
                cache.commit_step(StepRecord(step, stream.episode, stream.position, {}), decisions)
            return asked

        return selection, steps

    return make


def decision(one, step):
    name = one.question.question_id
    visit = Visit(name, step, 0, 0, 9, 8, 4, "best", asked=one.reason)
    return CacheDecision(Path(name, (1,), None, "stop", 1.0, 1.0, step=step), visit)


def test_without_replays_the_questions_come_in_the_order_of_the_data(run):
    _, steps = run(Off())
    asked = [one for some in steps(1, 4).values() for one in some]
    same = QuestionStream(QUESTIONS, seed=3, episodes=9).take(16)
    assert [one.question for one in asked] == same
    assert {(one.reason, one.bare) for one in asked} == {("turn", False)}


def test_a_replaying_method_replays_the_least_recently_visited_and_starts_new_ones_bare(run):
    _, steps = run(RPO())
    asked = steps(1, 5)
    assert [one.reason for one in asked[1]] == ["turn"] * 4 and all(one.bare for one in asked[1])
    assert [one.reason for one in asked[5]] == ["replay"] * 3 + ["turn"]
    assert [one.bare for one in asked[5]] == [False] * 3 + [True]


def test_no_question_is_left_out_for_good(run):
    """One question a step comes in turn, so a pass over the 16 questions takes 16 steps."""
    _, steps = run(RPO())
    asked = steps(1, 96)
    for first in range(1, 65):
        seen = {one.question.question_id for step in range(first, first + 32) for one in asked[step]}
        assert seen == {q.question_id for q in QUESTIONS}


def test_a_resumed_run_asks_the_same_questions(run, cache):
    selection, steps = run(RPO())
    steps(1, 12)
    position = selection.stream.position
    first = steps(13, 20)
    cache.rollback(12)
    again, steps = run(RPO())
    again.stream.position = position
    assert steps(13, 20) == first


def test_what_was_tried_in_this_step_is_not_asked_again(run):
    selection, steps = run(Off())
    steps(1, 12)
    tried = {q.question_id for q in QUESTIONS[:12]}
    assert {one.question.question_id for one in selection.choose(4, tried, 13)} == {q.question_id for q in QUESTIONS[12:]}


def test_groups_that_wait_come_first_and_count_among_those_asked(run):
    selection, _ = run(Off())
    sample = Sample(Prefix(), (1,), (-1.0,), "unfinished")
    waiting = [Begun(name, (sample,), "unfinished", 2) for name in ("q07", "q03")]
    asked = selection.choose(4, set(), 2, waiting)
    assert [one.question.question_id for one in asked[:2]] == ["q07", "q03"] and len(asked) == 4
    assert [(one.reason, one.begun) for one in asked] == [("unfinished", (sample,))] * 2 + [("turn", ())] * 2


def test_the_next_turn_of_a_question_whose_group_is_unfinished_comes_later(run):
    selection, _ = run(Off())
    sample = Sample(Prefix(), (1,), (-1.0,), "unfinished")
    order = [one.question.question_id for one in selection.choose(16, set(), 1)]
    again = selection.choose(16, set(), 2, [Begun(order[0], (sample,), "unfinished", 2)])
    assert len(again) == 16 and selection.stream.postponed == [order[0]]
    third = {one.question.question_id for one in selection.choose(16, set(), 3)}
    assert order[0] in third and not selection.stream.postponed
