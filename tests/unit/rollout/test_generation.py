"""What engines are asked, and when they are told to stop, with engines that answer in a given order."""

import math
from types import SimpleNamespace

import pytest

from openrlhf_rpo.rollout import generation
from openrlhf_rpo.rollout.generation import Generator
from openrlhf_rpo.rollout.requests import Generated, GeneratedGroup, GroupRequest, ScoreRequest, VerifyRequest


@pytest.fixture
def stops(monkeypatch):
    """``stops(lengths, enough)``: what the engine is told while groups of these longest samples finish in this order."""

    def run(lengths, enough):
        told = []
        engine = SimpleNamespace(stop_at=SimpleNamespace(remote=told.append))
        monkeypatch.setattr(generation.ray, "get", lambda refs: refs)
        made = Generator([engine], sleeping=False)
        groups = [GeneratedGroup([Generated((1,) * n, (0.0,) * n, "stop")]) for n in lengths]
        monkeypatch.setattr(made, "_finished", lambda *asked: iter(enumerate(groups)))
        assert [i for i, _ in made.generate([[]] * len(lengths), enough)] == list(range(len(lengths)))
        return told

    return run


def test_engines_that_sleep_wake_once_for_everything_inside(monkeypatch):
    told = []
    engine = SimpleNamespace(
        wake_up=SimpleNamespace(remote=lambda: told.append("wake")),
        sleep=SimpleNamespace(remote=lambda: told.append("sleep")),
    )
    monkeypatch.setattr(generation.ray, "get", lambda refs: refs)
    made = Generator([engine], sleeping=True)
    with made:
        for _ in range(2):
            with made:
                told.append("work")
    with pytest.raises(ZeroDivisionError), made:
        1 / 0  # noqa: B018
    assert told == ["wake", "work", "work", "sleep", "wake", "sleep"]


def test_the_engines_stop_at_the_longest_wanted_group_and_not_in_the_next_rollout(stops):
    assert stops([5, 9, 20], 2) == [9, math.inf]


def test_a_shorter_group_that_comes_later_moves_the_end(stops):
    assert stops([5, 9, 7, 20], 2) == [9, 7, math.inf]


def test_as_long_as_not_enough_are_done_nothing_stops(stops):
    assert stops([5, 9], 3) == [math.inf]


def test_without_a_tail_nothing_is_said(stops):
    assert stops([5, 9], None) == []


class Engine:
    """Says who was asked what; the answer is the question."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)
        self.score_group = SimpleNamespace(remote=lambda paths: self.ask("score", paths))
        self.generate_group = SimpleNamespace(remote=lambda group: self.ask("generate", group))

    def ask(self, what, about):
        self.asked.append((self.name, what, about))
        return self.name, what, len(self.asked)


def test_the_engine_that_scores_a_group_generates_it_and_no_other_group_waits(monkeypatch):
    asked = []
    engines = [Engine("a", asked), Engine("b", asked)]
    answers = {"score": [(-0.5, -0.25)], "generate": "samples"}
    monkeypatch.setattr(generation.ray, "get", lambda ref: ref if isinstance(ref, list) else answers[ref[1]])
    monkeypatch.setattr(generation.ray, "wait", lambda refs, num_returns: ([refs[-1]], refs[:-1]))  # the newest first
    plain, then = GroupRequest([None] * 2, 3), GroupRequest([None] * 2, 5)
    begun = []

    def begin(log_probs):
        begun.append(log_probs)
        return then

    paths = [ScoreRequest((1, 2, 3), 2)]
    verified = VerifyRequest(paths, 2, begin)
    assert list(Generator(engines, False).generate([plain, verified])) == [(1, "samples"), (0, "samples")]
    assert asked == [("a", "generate", plain), ("b", "score", paths), ("b", "generate", then)]
    assert begun == [[(-0.5, -0.25)]]


def test_what_a_held_gate_stops_is_asked_for_behind_it(monkeypatch):
    """The first group has half of its samples when the gate is held, the second one's paths are being scored."""
    asked, told = [], []
    half = GeneratedGroup([Generated((1,), (0.0,), "unfinished"), Generated((1, 2), (0.0, 0.0), "stop")])
    whole = GeneratedGroup([Generated((3,), (0.0,), "stop")])
    answers = iter([half, [(-0.5,)], whole, [(-0.25,)], whole])
    monkeypatch.setattr(generation.ray, "get", lambda ref: ref if isinstance(ref, list) else next(answers))
    monkeypatch.setattr(generation.ray, "wait", lambda refs, num_returns: (refs[:1], refs[1:]))
    gate = SimpleNamespace(held=True)

    def park():
        told.append("parked")
        gate.held = False

    gate.park = park
    plain, rest, then = GroupRequest([None] * 2, 3), GroupRequest([None], 4), GroupRequest([None] * 2, 5)
    verify = VerifyRequest([ScoreRequest((1, 2, 3), 2)], 2, lambda log_probs: told.append(log_probs) or then)

    def stopped(i, answer):
        told.append((i, answer))
        return lambda: (rest, verify)[i]

    found = Generator([Engine("a", asked)], False).generate([plain, verify], None, gate, stopped)
    assert list(found) == [(0, whole), (1, whole)]
    assert told == [(0, half), (1, None), "parked", [(-0.25,)]]
    assert [what for _, _, what in asked] == [plain, verify.paths, rest, verify.paths, then]
