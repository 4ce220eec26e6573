"""Which groups make a batch: those begun before, those asked now, and none that is in flight or too old."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from openrlhf_rpo.algo.methods import Off
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.config import AsyncOptions, RPOConfig
from openrlhf_rpo.rollout.batches import Batches, Starved
from openrlhf_rpo.rollout.gate import Gate
from openrlhf_rpo.rollout.questions import QuestionStream
from openrlhf_rpo.rollout.selection import Selection
from openrlhf_rpo.run.phases import PhaseClock
from openrlhf_rpo.types import Begun, Group, Part, Prefix, Question, Sample, StepRecord

QUESTIONS = [Question(f"q{i}", f"{i}?", "1") for i in range(12)]
ORDER = [q.question_id for q in QuestionStream(QUESTIONS, 3, 1).take(12)]

MANY = [Question(f"q{i}", f"{i}?", "1") for i in range(200)]

SCORER = SimpleNamespace(failures=0)


class Rollout:
    """``version(question id)`` is the policy that sampled its group, ``scores`` are the scores of that, and whether it
    ``waits`` (None: those behind as many as are enough). A rollout takes 5 seconds, of which it stands still for
    ``parked``."""

    def __init__(
        self,
        config,
        version=lambda name: 0,
        scores=lambda name: (0.0, 1.0),
        scorer=SCORER,
        waits=lambda name: False,
        parked=0.0,
    ):
        self.config, self.version, self.scores, self.waits, self.parked = config, version, scores, waits, parked
        self.gate, self.clock, self.scorer, self.work, self.asked = Gate(), PhaseClock(), scorer, None, []

    def awake(self):
        return nullcontext()

    def roll_out(self, asked, step, enough):
        self.clock.add({"cache": 1.0, "rollout": 5.0})
        self.gate.parked += self.parked
        self.asked.append([one.question.question_id for one in asked])
        done = len(asked) if enough is None else enough
        late = [i >= done if self.waits is None else self.waits(one.question.question_id) for i, one in enumerate(asked)]
        groups = [self.group(one.question, one.reason, step, waits) for one, waits in zip(asked, late, strict=True)]
        self.work = SimpleNamespace(groups=groups)
        return groups

    def group(self, question, reason, step, waits):
        parts = (Part(self.version(question.question_id), 1),)
        scores = (None, None) if waits else self.scores(question.question_id)
        samples = tuple(Sample(Prefix(), (1,), (-1.0,), "stop", score, score, parts=parts) for score in scores)
        return Group(question, samples, asked=reason, due=step, waits=waits)

    def engine_metrics(self, groups):
        return {"groups": len(groups)}


@pytest.fixture
def batches(tmp_path):
    with PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}) as cache:
        cache.mark_initialised()

        def make(
            dynamic=False,
            limits=(0, 1),
            estimator="group_norm",
            asynchronous=True,
            max_age=1,
            tail=1.0,
            size=2,
            questions=QUESTIONS,
            **run,
        ):
            config = RPOConfig(method_name="off", method=Off(), async_=AsyncOptions(max_age=max_age), tail=tail)
            args = SimpleNamespace(
                rollout=SimpleNamespace(batch_size=size, n_samples_per_prompt=3),
                train=SimpleNamespace(async_enable=asynchronous, async_queue_size=1, seed=3),
                algo=SimpleNamespace(
                    dynamic_filtering_enable=dynamic,
                    dynamic_filtering_range=limits,
                    advantage=SimpleNamespace(estimator=estimator),
                ),
            )
            stream = QuestionStream(questions, 3, 2)
            return Batches(Rollout(config, **run), Selection(stream, cache, Off()), args)

        yield make


def names(groups):
    return [group.question.question_id for group in groups]


def test_batches_follow_the_data_and_know_what_is_out_until_it_is_committed(batches):
    made = batches()
    assert [names(made.make(step).kept) for step in (1, 2)] == [ORDER[:2], ORDER[2:4]]
    assert made.out == {1: set(ORDER[:2]), 2: set(ORDER[2:4])}
    made.committed(1)
    assert made.out == {2: set(ORDER[2:4])}


def test_a_group_that_is_too_old_is_stored_only_and_another_takes_its_place(batches):
    made = batches(version=lambda name: 0 if name == ORDER[1] else 5)
    batch = made.make(7)
    assert names(batch.kept) == [ORDER[0], ORDER[2]] and names(batch.dropped) == [ORDER[1]]
    assert made.n_too_old(batch.dropped, 7) == 1 == batch.metrics["groups"] - 2
    assert names(batches(version=lambda name: 5).make(7).kept) == ORDER[:2]  # one step behind, as max_age allows


def test_a_batch_that_the_data_do_not_fill_leaves_nothing_on_the_way(batches):
    """24 turns, of which the 21st has no signal and needs one more."""
    turns = count(1)
    made = batches(dynamic=True, asynchronous=False, size=4, scores=lambda name: (0.0, float(next(turns) != 21)))
    for step in range(1, 6):
        assert len(made.make(step).kept) == 4
        made.committed(step)
    assert made.make(6) is None and made.on_the_way() == []


def test_a_reward_model_scores_only_what_is_trained_on(batches):
    assert names(batches(version=lambda name: 0, scorer=None).make(7).kept) == ORDER[:2]


def test_a_resumed_batch_is_no_larger_than_the_others(batches):
    """What dynamic sampling dropped before may have signal now: another answer of a judge, a reward that had failed."""
    made = batches(dynamic=True)
    sample = Sample(Prefix(), (1,), (-1.0,), "stop")
    made.begun = [Begun(name, (sample, sample), "turn", 1) for name in ORDER[:4]]
    batch = made.make(1)
    assert names(batch.kept) == ORDER[:2] and names(batch.dropped) == ORDER[2:4]


def test_without_asynchronous_training_nothing_is_too_old(batches):
    assert names(batches(asynchronous=False).make(9).kept) == ORDER[:2]


def test_a_resumed_run_goes_on_with_what_is_due_and_asks_nothing_that_is_begun(batches):
    made = batches()
    sample = Sample(Prefix(), (1,), (-1.0,), "unfinished")
    made.begun = [
        Begun(ORDER[3], (sample,), "turn", 1),
        Begun(ORDER[0], (sample,), "replay", 2),
        Begun(ORDER[5], (), "turn", 2),
    ]
    first = made.make(1)
    assert names(first.kept) == [ORDER[3], ORDER[1]] and made.on_the_way() == made.begun
    assert [g.question_id for g in made.begun] == [ORDER[0], ORDER[5]]
    assert made.selection.stream.postponed == [ORDER[0]]
    second = made.make(2)
    assert names(second.kept) == [ORDER[0], ORDER[5]] and [g.asked for g in second.kept] == ["replay", "turn"]


def test_dynamic_sampling_replaces_groups_that_agree(batches):
    made = batches(dynamic=True, scores=lambda name: (1.0, 1.0) if name in ORDER[:3] else (0.0, 1.0))
    batch = made.make(1)
    first, second, last = made.rollout.asked
    assert (first, second, sorted(last)) == (ORDER[:2], ORDER[2:4], sorted(ORDER[4:6]))
    assert names(batch.kept) == [ORDER[3], last[0]] and names(batch.dropped) == [*ORDER[:3], last[1]]


def test_dynamic_sampling_asks_as_many_as_fill_the_batch_at_the_share_that_was_kept(batches):
    made = batches(dynamic=True, size=4, scores=lambda name: (1.0, 1.0) if name in ORDER[:3] else (0.0, 1.0))
    made.make(1)
    assert list(map(sorted, made.rollout.asked)) == [
        sorted(ORDER[:4]),
        sorted(ORDER[4:8]),
    ]  # 12 would fill it, a batch has 4
    made = batches(dynamic=True, size=4, scores=lambda name: (1.0, 1.0) if name in ORDER[::2] else (0.0, 1.0))
    batch = made.make(1)
    assert list(map(len, made.rollout.asked)) == [4, 4]
    assert sorted(names(batch.kept)) == sorted(ORDER[1:8:2]) and sorted(names(batch.dropped)) == sorted(ORDER[:8:2])
    assert [made.trains(group, 1) for group in batch.kept + batch.dropped] == [True] * 4 + [False] * 4


def test_more_than_a_batch_with_signal_is_stored_only_whatever_it_was_asked_for(batches):
    too_many = set()
    for step in range(1, 9):
        one = {"scores": lambda name: (1.0, 1.0) if name == ORDER[0] else (0.0, 1.0), "asynchronous": False}
        made = batches(dynamic=True, size=4, **one)
        batch = made.make(step)  # 1 missing, 3 of 4 kept: 2
        assert sorted(made.rollout.asked[1]) == sorted(ORDER[4:6]) and len(batch.kept) == 4
        assert names(batch.dropped) == [ORDER[0], made.rollout.asked[1][1]]
        too_many.add(made.rollout.asked[1][1])
    assert too_many == set(ORDER[4:6])


def test_no_more_than_missing_is_asked_of_the_next_pass_over_the_data(batches):
    made = batches(dynamic=True, size=4, scores=lambda name: (1.0, 1.0) if name == ORDER[0] else (0.0, 1.0))
    made.out[0] = set(ORDER[5:])
    assert names(made.make(1).kept) == ORDER[1:5] and made.selection.stream.position == 5
    made = batches(dynamic=True, size=4, scores=lambda name: (1.0, 1.0) if name in ORDER[6:9] else (0.0, 1.0))
    made.selection.stream.position = 6
    made.make(1)
    assert list(map(len, made.rollout.asked)) == [4, 3] and made.selection.stream.episode == 1


def test_a_tail_never_asks_for_more_than_there_is(batches):
    """The search for it would go through all that is left of the data."""
    made = batches(dynamic=True, tail=0.5, size=4, scores=lambda name: (1.0, 1.0) if name in ORDER[:7] else (0.0, 1.0))
    made.make(1)
    assert list(map(len, made.rollout.asked)) == [8, 4] and made.selection.stream.remaining == 12


@pytest.mark.parametrize(("tail", "size", "begun"), [(1.0, 4, 4), (0.5, 4, 8), (0.75, 4, 6), (0.7, 21, 30)])
def test_with_a_tail_as_many_more_are_begun_as_bring_the_wanted_ones(batches, tail, size, begun):
    """4 / 0.75 is rounded up; 21 / 0.7 is 30, but a little more in floating point."""
    made = batches(tail=tail, size=size, questions=MANY, waits=None)
    assert len(made.make(1).kept) == size and list(map(len, made.rollout.asked)) == [begun]


def test_with_a_tail_and_dynamic_sampling_no_more_wait_than_were_begun_for_it(batches):
    """Only the first round begins more than it waits for, and what waits is not tried."""
    some = {q.question_id for q in MANY[::4]}
    scores = {"scores": lambda name: (0.0, 1.0) if name in some else (1.0, 1.0)}
    made = batches(dynamic=True, tail=0.5, size=4, asynchronous=False, questions=MANY, waits=None, **scores)
    for step in range(1, 7):
        before = len(made.rollout.asked)
        batch = made.make(step)
        rounds = made.rollout.asked[before:]
        assert len(batch.kept) == 4 and len(batch.waiting) == len(rounds[0]) - 4 == 4 and len(rounds) > 1
        made.committed(step)
    made = batches(dynamic=True, tail=0.1, size=4, asynchronous=False, questions=MANY, waits=None)
    assert len(made.make(1).waiting) == 36  # 40 begun, as many as dynamic sampling may try


@pytest.mark.parametrize(("tail", "position", "waiting"), [(1.0, 20, 0), (0.5, 24, 4)])
def test_a_batch_that_the_data_cannot_fill_leaves_all_as_it_was(batches, tail, position, waiting):
    """A run that is extended by more passes goes on there."""
    made = batches(size=5, tail=tail, asynchronous=False, waits=None)
    steps = []
    while True:
        stream = made.selection.stream
        before = stream.position, list(stream.postponed), list(made.begun)
        if (batch := made.make(len(steps) + 1)) is None:
            break
        steps.append(batch)
        made.committed(len(steps))
    assert (stream.position, stream.postponed, made.begun) == before
    assert (len(steps), stream.position, len(made.begun)) == (4, position, waiting)


@pytest.mark.parametrize("limits", [(0.5, 1), (0, 0.5)])
def test_a_group_whose_mean_score_is_a_limit_of_the_range_is_replaced(batches, limits):
    inside = (limits[0],) * 3 + (limits[1],)
    made = batches(dynamic=True, limits=limits, scores=lambda name: (0.0, 1.0) if name == ORDER[0] else inside)
    batch = made.make(1)
    second = made.rollout.asked[1]
    assert names(batch.kept) == [ORDER[1], second[0]] and names(batch.dropped) == [ORDER[0], second[1]]


@pytest.mark.parametrize(("estimator", "right_stays"), [("reinforce", True), ("gae", True), ("rloo", False)])
def test_a_range_may_keep_groups_that_agree_where_the_estimator_compares_no_samples(batches, estimator, right_stays):
    scores = {ORDER[0]: (1.0, 1.0), ORDER[1]: (0.0, 0.0)}
    made = batches(dynamic=True, limits=(0, 1.5), estimator=estimator, scores=lambda name: scores.get(name, (0.0, 1.0)))
    trained_on = {group.question.question_id: made.trains(group, 1) for group in made.make(1).groups}
    assert [trained_on[name] for name in ORDER[:2]] == [right_stays, False]


@pytest.mark.parametrize(("n", "asked"), [(11, 10), (12, 12), (200, 20)])
def test_dynamic_sampling_gives_up_at_its_limit_and_at_the_end_of_a_small_data_set(batches, n, asked):
    """Ten batches of two questions; of 11 questions the last alone would not fill one, of 12 the last two would."""
    made = batches(dynamic=True, scores=lambda name: (1.0, 1.0), questions=MANY[:n])
    with pytest.raises(Starved, match=f"{asked} of {n} questions tried, only 0 of 2 groups have samples that differ"):
        made.make(1)


@pytest.mark.parametrize("begins", [0, 12])
def test_a_batch_waits_for_questions_in_flight_that_it_needs_also_in_the_last_pass_over_the_data(batches, begins):
    order = [q.question_id for q in QuestionStream(QUESTIONS, 3, 2).take(12)]
    if begins:
        stream = QuestionStream(QUESTIONS, 3, 2)
        stream.position = begins
        order = [q.question_id for q in stream.take(12)]
    made = batches(dynamic=True, scores=lambda name: (1.0, 1.0) if name in order[:4] else (0.0, 1.0))
    made.selection.stream.position, made.out[0], found = begins, set(order[4:]), []
    gate = made.rollout.gate

    def roll_out():
        with gate.passing():
            found.append(made.make(1))

    thread = threading.Thread(target=roll_out)
    thread.start()
    gate.hold(done=lambda: made.short)
    assert made.rollout.asked == [order[:2], order[2:4]] and not found
    assert {group.question_id for group in made.on_the_way()} == set(order[:4])
    made.committed(0)
    gate.release()
    thread.join(60)
    assert set(names(found[0].kept)) < set(order[4:]) and names(found[0].dropped) == order[:4]
    assert gate.parked > 0 and found[0].seconds["rollout"] == pytest.approx(3 * 5, abs=0.1)  # without the wait


def test_it_stops_where_too_few_questions_are_left_beside_those_that_are_begun_for_a_later_step(batches):
    made = batches(dynamic=True, scores=lambda name: (1.0, 1.0))
    made.begun = [Begun(name, (), "turn", 2) for name in ORDER[4:]]
    with pytest.raises(Starved, match="8 others are in flight, and 2 groups are missing: lower --train.async_queue_size"):
        made.make(1)


def test_what_changed_options_do_not_allow_to_continue_is_begun_again(batches):
    made = batches()
    made.rollout.fits = lambda question, samples: question.question_id == ORDER[0] and len(samples) == 1
    sample = Sample(Prefix(), (1,), (-1.0,), "unfinished")
    begun = [Begun(name, (sample,), "replay", 2) for name in ORDER[:2]]
    made.go_on(begun)
    assert made.begun == [begun[0], replace(begun[1], samples=(Sample(Prefix(), (), (), "unfinished"),) * 3)]
    made.selection.cache.commit_step(StepRecord(1, 0, 2, {}), [], waiting=made.begun)


def test_the_next_batch_waits_while_its_questions_are_in_flight(batches):
    made = batches()
    assert not made.short
    made.out[1] = set(ORDER[1:])
    assert made.short
    made.begun = [Begun(ORDER[0], (), "turn", 2)]  # a resumed run's: the batch had enough
    assert not made.short
    made.begun = []
    made.committed(1)
    assert not made.short


def test_the_seconds_of_a_batch_are_its_own(batches):
    made = batches()
    assert [made.make(step).seconds["cache"] for step in (1, 2)] == [1.0, 1.0]


def test_the_seconds_of_the_rollout_are_without_those_that_it_stood_still(batches):
    made = batches(parked=2.0)
    assert [made.make(step).seconds["rollout"] for step in (1, 2)] == [3.0, 3.0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_with_a_tail_more_groups_are_begun_and_those_that_wait_come_first_in_the_next_step(batches, dynamic):
    late = [ORDER[0], ORDER[2]]
    made = batches(dynamic=dynamic, tail=0.5, waits=lambda name: name in late)
    batch = made.make(1)
    assert made.rollout.asked == [ORDER[:4]]
    assert names(batch.kept) == [ORDER[1], ORDER[3]] and batch.dropped == [] and batch.metrics["groups"] == 4
    assert names(batch.waiting) == late and [group.begun for group in batch.waiting] == made.begun
    assert [(group.asked, group.due) for group in made.begun] == [("unfinished", 2)] * 2
    late.clear()
    assert names(made.make(2).kept) == [ORDER[0], ORDER[2]] and made.rollout.asked[1] == [ORDER[0], ORDER[2], *ORDER[4:6]]
