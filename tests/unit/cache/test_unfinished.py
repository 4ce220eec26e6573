"""Groups that wait for the next step."""

import math

import pytest

from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError
from openrlhf_rpo.types import CacheDecision, Group, Prefix, Question, Sample, StepRecord


def waiting(question, *samples):
    return Group(Question(question, "1+1?", "2"), samples, waits=True)


def sample(tokens, finish="unfinished", prefix=None):
    return Sample(prefix or Prefix(), tokens, (-0.5,) * len(tokens), finish)


@pytest.fixture
def step(visit):
    def commit(cache, number, *groups, paths=()):
        decisions = [CacheDecision(path, visit(path.question_id, number)) for path in paths]
        cache.commit_step(StepRecord(number, 0, number, {}), decisions, groups)

    return commit


def test_the_samples_come_back_as_they_were_with_their_path(cache, step, path):
    step(cache, 1, paths=[path("q", (1, 2, 3, 4), step=1, log_probs=(-0.25, -0.5, -1.0, -2.0))])
    stored = cache.paths(["q"])["q"]
    own = Prefix((1, 2), (-0.25, -0.5), 2, stored)
    scored = Prefix((1, 2, 3), (-0.125, -0.25, -4.0), 1, stored)  # verified: the log-probs of now
    groups = [waiting("q", sample((7, 8), "stop", own), sample((9,), prefix=scored)), waiting("a", sample((5, 6)))]
    step(cache, 2, *groups)
    assert cache.unfinished() == [("a", groups[1].samples), ("q", groups[0].samples)]


def test_only_the_latest_step_s_wait(cache, step):
    step(cache, 1, waiting("q", sample((1, 2))))
    step(cache, 2)
    assert cache.unfinished() == []


def test_a_rollback_brings_them_back(cache, step):
    step(cache, 1, waiting("q", sample((1, 2))))
    step(cache, 2, waiting("r", sample((3,))))
    assert cache.rollback(1) == 1
    assert cache.unfinished() == [("q", (sample((1, 2)),))]


def test_pruning_keeps_those_that_a_step_may_be_resumed_with(cache, step, path):
    step(cache, 1, paths=[path("q", step=1)])
    of_path = Prefix((1,), (-1.0,), 2, cache.paths(["q"])["q"])
    for number in (2, 3):
        step(cache, number, waiting("q", sample((5,), prefix=of_path)))
    step(cache, 4, paths=[path("q", (8, 9), step=4)])
    assert cache.prune(3) == 1  # the initial path of q
    assert cache.rollback(3) == 1
    assert cache.unfinished() == [("q", (sample((5,), prefix=of_path),))]
    step(cache, 4, paths=[path("q", (8, 9), step=4)])
    assert cache.prune(4) == 1  # the path of step 1
    assert cache.verify() == []


def test_a_copy_has_them(cache, step, tmp_path):
    step(cache, 1, waiting("q", sample((1, 2))))
    cache.copy_to(str(tmp_path / "copy.db"))
    with type(cache).open_to_read(f"sqlite:///{tmp_path}/copy.db") as copy:
        assert copy.unfinished() == cache.unfinished() != []


def test_damage_is_found(cache, step):
    step(cache, 1, waiting("q", sample((1, 2))))
    with cache._database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE unfinished SET prefix_length = 1")
    [found] = cache.verify()
    assert found.startswith("unfinished sample 0 of question q at step 1 is damaged")
    with pytest.raises(CacheCorrupt, match="unfinished sample 0"):
        cache.unfinished()


def test_what_cannot_be_stored_is_refused_and_nothing_is_written(cache, step):
    with pytest.raises(CacheError, match="the samples of question q cannot be stored"):
        step(cache, 1, waiting("q", Sample(Prefix(), (1, 2), (-0.5, math.nan), "unfinished")))
    assert cache.latest_step == 0
