"""Groups that wait for the next step."""

import math

import pytest

from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError
from openrlhf_rpo.cache.models import UnfinishedRow, checksum_of
from openrlhf_rpo.types import UNKNOWN, Begun, CacheDecision, Part, Prefix, Sample, StepRecord


def waiting(question, *samples, asked="turn", due=9):
    return Begun(question, samples, asked, due)


def sample(tokens, finish="unfinished", prefix=None, parts=()):
    return Sample(prefix or Prefix(), tokens, (-0.5,) * len(tokens), finish, parts=parts)


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
    assert cache.unfinished() == groups


def test_groups_of_later_steps_come_back_in_their_order_whatever_their_samples_have(cache, step):
    bare = (Prefix(),) * 2
    groups = [
        waiting("z", *(sample((), prefix=prefix) for prefix in bare), due=4),  # asked and not begun
        waiting("q", sample((5, 6, 1), "stop"), sample((7,), "length"), due=3),  # all done
        waiting("r", sample((), prefix=Prefix((4,), (-1.0,), 1, cache.paths(["r"])["r"])), asked="replay", due=3),
        waiting("b", sample((8,)), asked="unfinished", due=3),
    ]
    step(cache, 1)
    step(cache, 2, *(waiting(g.question_id, sample((9,))) for g in groups))
    assert cache.rollback(1) == 1
    step(cache, 2, *groups)
    assert cache.unfinished() == groups
    assert [group.due for group in cache.unfinished()] == [4, 3, 3, 3] and cache.verify() == []


def test_every_sample_keeps_its_parts(cache, step):
    parts = [(Part(UNKNOWN, 1), Part(0, 2)), (Part(1, 3),), ()]
    step(cache, 1, waiting("q", *(sample((1, 2, 3), parts=own) for own in parts), sample(())))
    [group] = cache.unfinished()
    assert [one.parts for one in group.samples] == [*parts, ()]


def test_only_the_latest_step_s_wait(cache, step):
    step(cache, 1, waiting("q", sample((1, 2))))
    step(cache, 2)
    assert cache.unfinished() == []


def test_a_rollback_brings_them_back(cache, step):
    step(cache, 1, waiting("q", sample((1, 2))))
    step(cache, 2, waiting("r", sample((3,))))
    assert cache.rollback(1) == 1
    assert [(group.question_id, group.samples) for group in cache.unfinished()] == [("q", (sample((1, 2)),))]


def test_pruning_keeps_those_that_a_step_may_be_resumed_with(cache, step, path):
    step(cache, 1, paths=[path("q", step=1)])
    of_path = Prefix((1,), (-1.0,), 2, cache.paths(["q"])["q"])
    for number in (2, 3):
        step(cache, number, waiting("q", sample((5,), prefix=of_path)))
    step(cache, 4, paths=[path("q", (8, 9), step=4)])
    assert cache.prune(3) == 1  # the initial path of q
    assert cache.rollback(3) == 1
    assert [(group.question_id, group.samples) for group in cache.unfinished()] == [("q", (sample((5,), prefix=of_path),))]
    step(cache, 4, paths=[path("q", (8, 9), step=4)])
    assert cache.prune(4) == 1  # the path of step 1
    assert cache.verify() == []


def test_pruning_keeps_those_of_a_checkpoint_with_their_paths(cache, step, path):
    step(cache, 1, paths=[path("q", step=1)])
    group = waiting("q", sample((5,), prefix=Prefix((1,), (-1.0,), 2, cache.paths(["q"])["q"])))
    for number in (2, 3):
        step(cache, number, group)
    for number in (4, 5):
        step(cache, number, paths=[path("q", (8, 9), step=number)])
    assert cache.prune(5, [2]) == 2  # the paths of steps 0 and 4
    assert cache.rollback(2) == 3
    assert cache.unfinished() == [group] and cache.verify() == []


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


REFUSED = {
    "the samples of question q cannot be stored: log-prob nan": waiting(
        "q", Sample(Prefix(), (1, 2), (-0.5, math.nan), "unfinished")
    ),
    "the samples of question q cannot be stored: parts of 3 of 2 tokens": waiting("q", sample((1, 2), parts=(Part(0, 3),))),
    "the samples of question q cannot be stored: a prefix of 1 tokens of no stored path": waiting(
        "q", sample((1,), prefix=Prefix((1,), (-1.0,)))
    ),
    "the group of question q waits without samples": waiting("q"),
    "the group of question q waits after step 1 for step 1": waiting("q", sample((1,)), due=1),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(cache, step, said):
    with pytest.raises(CacheError, match=said):
        step(cache, 1, REFUSED[said])
    assert cache.latest_step == 0


DAMAGES = {
    "number = 0": ({"due": 1}, "due 1, which is no later step"),
    "number = 1": ({"parts": "0:1"}, "parts of 1 of 2 tokens"),
    "number = 2": ({"prefix_length": 1}, "prefix_length 1 of no path"),
    "number = 3": ({"place": 1}, "the unfinished samples of question q at step 1 are no group"),
    "number = 4": ({"asked": "replay"}, "the unfinished samples of question q at step 1 are no group"),
    "number = 5": ({"number": 9}, "the unfinished samples of question q at step 1 are no group"),
    "number = 6": ({"path_id": 2}, "has an impossible path, path 2"),
}


@pytest.mark.parametrize("where", DAMAGES)
def test_what_no_step_stores_is_found_even_with_the_right_checksum(cache, step, where):
    values, said = DAMAGES[where]
    step(cache, 1, waiting("q", *[sample((1, 2))] * 7))
    with cache._database.engine.begin() as connection:
        table = UnfinishedRow.__table__
        [row] = connection.execute(table.select().where(table.c.number == int(where[-1]))).mappings()
        new = dict(row) | values
        new["checksum"] = checksum_of(UnfinishedRow, new)
        connection.execute(table.update().where(table.c.number == row["number"]).values(new))
    assert said in cache.verify()[0]
    with pytest.raises(CacheCorrupt, match=said):
        cache.unfinished()
