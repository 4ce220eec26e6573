"""Two sides of a run: which policy samples a batch, when the rollout side stands still, and what is in flight then."""

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from openrlhf_rpo.rollout.ahead import Ahead, InStep
from openrlhf_rpo.rollout.batches import Batch
from openrlhf_rpo.rollout.gate import Gate
from openrlhf_rpo.run.phases import PhaseClock


class OfStep(tuple):
    """Stands in for a group: its step and the policy that made it."""

    @property
    def begun(self):
        return self


class Made:
    """Stands in for ``Batches``: a batch of one group, named after its step and the policy that made it."""

    short = False

    def __init__(self, last=99, seconds=0.0, on_the_way=()):
        self.rollout = SimpleNamespace(gate=Gate(), generator=SimpleNamespace(stop=self.stop, go_on=self.go_on))
        self.last, self.seconds, self.made, self.told, self.begun = last, seconds, [], [], []
        self.way = list(on_the_way)

    def make(self, step):
        self.made.append(step)
        if step > self.last:
            return None
        time.sleep(self.seconds)
        return Batch([OfStep((step, self.rollout.gate.version))], [], [], {"rollout": self.seconds})

    def on_the_way(self):
        return self.way

    def stop(self):
        self.told.append("stop")

    def go_on(self):
        self.told.append("go on")


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert holds()


def train(source, made, steps):
    """(step, version) of each batch, and what was in flight when each step was committed."""
    source.start(1, steps)
    batches, in_flight = [], []
    for step in range(1, steps + 1):
        batch = source.take(step)
        batches += batch.kept
        with source.still():
            made.rollout.gate.version = step
            in_flight.append(source.in_flight())
    return batches, in_flight


def test_without_a_queue_every_batch_is_of_the_policy_that_trains_on_it():
    made = Made()
    batches, in_flight = train(InStep(made, PhaseClock()), made, 4)
    assert batches == [(1, 0), (2, 1), (3, 2), (4, 3)] and in_flight == [[]] * 4


def test_what_a_longer_queue_had_begun_stays_in_flight_without_one():
    made = Made()
    made.begun = ["of a later step"]
    assert InStep(made, PhaseClock()).in_flight() == ["of a later step"]


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_with_a_queue_of_one_every_batch_is_of_the_policy_before_whatever_takes_longer(seconds):
    made = Made(seconds=seconds)
    batches, in_flight = train(Ahead(made, PhaseClock(), 1, partial=False), made, 5)
    assert batches == [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)]
    assert in_flight == [[(2, 0)], [(3, 1)], [(4, 2)], [(5, 3)], []]
    assert made.told == []


def test_larger_queues_are_of_policies_that_are_as_much_older():
    made = Made()
    batches, in_flight = train(Ahead(made, PhaseClock(), 3, partial=False), made, 6)
    assert batches == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 2)]
    assert in_flight[0] == [(2, 0), (3, 0), (4, 0)] and in_flight[-1] == []


def test_a_queue_is_never_longer_than_its_size():
    made = Made()
    source = Ahead(made, PhaseClock(), 2, partial=False)
    source.start(1, 9)
    source.take(1)
    wait_until(lambda: made.made == [1, 2, 3])
    time.sleep(0.02)
    assert made.made == [1, 2, 3]


def test_the_data_end_where_no_batch_can_be_made():
    made = Made(last=2)
    source = Ahead(made, PhaseClock(), 1, partial=False)
    source.start(1, 9)
    assert [source.take(step) is None for step in (1, 2, 3)] == [False, False, True]


def test_what_ends_the_rollout_side_ends_the_training_side_where_it_takes_the_batch():
    made = Made()
    made.make = lambda step: 1 / 0
    source = Ahead(made, PhaseClock(), 1, partial=False)
    source.start(1, 9)
    with pytest.raises(ZeroDivisionError):
        source.take(1)


@pytest.mark.parametrize("partial", [False, True])
def test_what_ends_the_rollout_side_leaves_the_step_that_trains_uncommitted(partial):
    """Committed with half of the next batch in flight, it would be resumed with another second half."""
    made = Made()
    make = made.make
    made.make = lambda step: make(step) if step == 1 else 1 / 0
    source = Ahead(made, PhaseClock(), 1, partial)
    source.start(1, 9)
    source.take(1)
    wait_until(lambda: source._ended)
    with pytest.raises(ZeroDivisionError), source.still():
        pytest.fail("the step is committed")


def test_partial_samples_are_stopped_while_the_training_side_has_the_engines():
    made = Made(on_the_way=["half a group"])
    source = Ahead(made, PhaseClock(), 1, partial=True)
    source.start(1, 1)
    source.take(1)
    with source.still():  # an evaluation needs engines that are not stopped
        assert made.told == ["stop", "go on"] and source.in_flight() == ["half a group"]


class Stopwatch(PhaseClock):
    """Says when the training side waits."""

    def __init__(self):
        super().__init__()
        self.waiting = threading.Event()

    @contextmanager
    def __call__(self, phase):
        with super().__call__(phase):
            self.waiting.set()
            yield


def test_shares_of_a_step_are_those_of_its_wall_time(monkeypatch):
    """Of 20 seconds the training side waits from 2 to 5; the rollout side works from 0 to 5 and from 5 to 15."""
    now, made = [0.0], Made()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock, trained = Stopwatch(), threading.Event()

    def make(step):
        made.made.append(step)
        assert (clock.waiting if step == 1 else trained).wait(60)
        if step == 1:
            now[0] = 5.0
        return Batch([OfStep((step, 0))], [], [], {"rollout": 4.5})

    made.make = make
    source = Ahead(made, clock, 1, partial=False)
    source.start(1, 2)
    wait_until(lambda: made.made == [1])
    now[0] = 2.0
    batch = source.take(1)
    wait_until(lambda: made.made == [1, 2])
    now[0] = 15.0
    trained.set()
    with source.still():
        now[0] = 20.0
        metrics = source.timing(batch)
    assert (metrics["timing/step_total"], metrics["timing/waiting"], metrics["timing/rollout"]) == (20, 3, 4.5)
    assert (metrics["rpo/train_busy"], metrics["rpo/rollout_busy"]) == (pytest.approx(0.85), 0.75)


def test_a_side_that_parks_lets_the_other_one_go_first():
    gate, order = Gate(), []

    def roll_out():
        with gate.passing():
            order.append("begun")
            while not gate.held:
                time.sleep(0.001)
            order.append("parks")
            gate.park()
            order.append(f"goes on with version {gate.version}")

    thread = threading.Thread(target=roll_out)
    thread.start()
    while not order:
        time.sleep(0.001)
    gate.hold(stop=lambda: order.append("stop"))
    order.append("trains")
    gate.version = 7
    gate.release()
    thread.join(5)
    assert order == ["begun", "stop", "parks", "trains", "goes on with version 7"]
    assert gate.parked > 0 and gate.worked > 0


def test_a_batch_that_lacks_questions_waits_for_those_in_flight():
    """``short`` until the first batch is committed: the second one is of the policy after it."""
    made = Made()
    make = made.make

    def takes_all_that_is_left(step):
        made.short = step == 1
        return make(step)

    made.make = takes_all_that_is_left
    source = Ahead(made, PhaseClock(), 1, partial=False)
    source.start(1, 2)
    source.take(1)
    with source.still():
        made.rollout.gate.version, made.short = 1, False
    assert source.take(2).kept == [(2, 1)]
