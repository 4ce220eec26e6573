"""Laws of what enters the cache after a step."""

from dataclasses import replace

import numpy as np
import pytest

from openrlhf_rpo.algo.methods import RPO, Choice, Off, Verify
from openrlhf_rpo.algo.methods.decide import decide
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.types import OWN, UNKNOWN, Group, Part, Path, Prefix, Question, Sample, StepRecord, Visit

QUESTION = Question("q", "1+1=", "2")
PARENT = Path("q", (1, 2, 3, 4, 5, 6), (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6), "stop", 1.0, 0.9, step=3, path_id=7)
PREFIX = Prefix(PARENT.token_ids[:4], PARENT.log_probs[:4], 2, PARENT)


def sample(score, length=3, prefix=PREFIX, reward=None, finish="stop"):
    ids = tuple(range(50, 50 + length))
    return Sample(prefix, ids, (-1.0,) * length, finish, score, score if reward is None else reward)


def run(*samples, has_path=True, step=8, seed=42, method=None, **options):
    options = {f"update_{name}": value for name, value in options.items()}
    return decide(method or RPO(**options), Group(QUESTION, samples), has_path, step, seed)


def test_worked_example():
    decision = run(sample(0.0, 9), sample(1.0, 3, reward=0.8), sample(1.0, 2, reward=0.9, finish="length"), epsilon=1.0)
    assert decision.path == Path(
        question_id="q",
        token_ids=(1, 2, 3, 4, 50, 51),
        log_probs=(-0.1, -0.2, -0.3, -0.4, -1.0, -1.0),
        finish_reason="length",
        score=1.0,
        reward=0.9,
        prefix_length=4,
        step=8,
        path_id=None,
        parent_id=7,
        parts=(Part(UNKNOWN, 6),),
    )
    assert decision.visit == Visit("q", 8, 2, 4, 6, 3, 2, "best", False, n_tokens=14)


class Counts(Off):
    """A method of a user who thinks in NumPy."""

    def store(self, scored):
        scores = np.array(scored.scores)
        return Choice({np.int64(0): int(scores.argmax())}, np.str_("best"), scores.mean() < 2)


def test_what_a_method_computed_with_numpy_is_stored_as_pythons_and_read_back_undamaged(tmp_path):
    decision = decide(Counts(), Group(QUESTION, [sample(1.0, prefix=Prefix())]), False, 1, 42)
    assert [type(value) for value in (decision.visit.outcome, decision.visit.start_bare)] == [str, bool]
    with PathCache.open(f"sqlite:///{tmp_path}/c.db") as cache:
        cache.mark_initialised()
        cache.commit_step(StepRecord(1, 0, 1, {}), [decision])
        assert cache.visits(["q"])["q"].start_bare and cache.verify() == []


def test_the_shaped_reward_decides_not_the_score():
    decision = run(sample(1.0, reward=0.6), sample(0.9, reward=0.8), epsilon=1.0)
    assert (decision.path.score, decision.path.reward) == (0.9, 0.8)


def test_after_a_group_without_a_rewarded_sample_the_next_one_starts_bare():
    decision = run(sample(0.0), sample(-1.0))
    assert decision.path is None
    assert (decision.visit.outcome, decision.visit.start_bare, decision.visit.n_rewarded) == ("reset", True, 0)


def test_without_a_stored_path_there_is_nothing_to_reset():
    decision = run(sample(0.0, prefix=Prefix()), has_path=False)
    assert (decision.path, decision.visit.outcome, decision.visit.start_bare) == (None, "no_rewarded_sample", False)


@pytest.mark.parametrize("prefix", [Prefix(), Prefix((), (), 6, PARENT)], ids=["fresh", "everything cut"])
def test_a_path_that_inherits_no_token_has_no_parent(prefix):
    path = run(sample(1.0, prefix=prefix)).path
    assert (path.parent_id, path.prefix_length) == (None, 0)
    assert (tuple(path.token_ids), tuple(path.log_probs)) == ((50, 51, 52), (-1.0,) * 3)


def test_a_path_has_the_parts_of_what_it_keeps_and_of_the_response():
    """Of the parent's 3 and 3 tokens 4 are kept. The policy of the last of them went on, and was replaced on the way."""
    known = replace(PREFIX, path=replace(PARENT, parts=(Part(0, 3), Part(2, 3))))
    path = run(replace(sample(1.0, 5, known), parts=(Part(2, 1), Part(7, 4)))).path
    assert path.parts == ((0, 3), (2, 2), (7, 4))
    assert run(sample(1.0, 5, known)).path.parts == ((0, 3), (2, 1), (UNKNOWN, 5))
    imported = replace(sample(1.0, 5), parts=(Part(7, 5),))
    assert run(imported).path.parts == ((UNKNOWN, 4), (7, 5))
    assert run(replace(imported, prefix=Prefix())).path.parts == ((7, 5),)


def test_a_path_on_a_prefix_without_log_probs_has_none():
    assert run(sample(1.0, prefix=Prefix((1, 2), None, 4, PARENT))).path.log_probs is None


def test_the_visit_remembers_the_shortest_path_right_or_wrong():
    assert run(sample(1.0, 9), sample(0.0, 1)).visit.shortest_path == 5


def test_a_resumed_run_decides_the_same():
    samples = [sample(1.0, i) for i in range(1, 9)]
    assert [run(*samples, step=step) for step in range(5)] == [run(*samples, step=step) for step in range(5)]
    assert len({tuple(run(*samples, step=step).path.token_ids) for step in range(20)}) > 1


@pytest.mark.parametrize("unscored", [sample(None), Sample(PREFIX, (9,), (-1.0,), "stop", 1.0)])
def test_a_sample_without_score_or_reward_is_refused(unscored):
    with pytest.raises(ValueError, match="yet"):
        run(unscored)


def test_every_sample_in_its_own_place_keeps_its_parent_and_is_never_reset():
    decision = run(sample(0.0, 9), sample(0.0, 3), method=Verify())
    assert [(p.slot, len(p), p.score, p.parent_id) for p in decision.paths] == [(0, 13, 0.0, 7), (1, 7, 0.0, 7)]
    assert (decision.visit.outcome, decision.visit.start_bare) == ("every", False)


def test_a_visit_says_which_path_it_cut():
    other = replace(PREFIX, path=replace(PARENT, slot=1))
    assert run(sample(1.0, prefix=other)).visit.slot == 1
    assert run(sample(1.0, prefix=Prefix())).visit.slot == OWN


def test_a_visit_to_several_depths_remembers_their_means():
    """A success rate of 1/2 is that of the mean depth, not of the first sample's."""
    deep, bare = PREFIX, Prefix((), (), 6, PARENT)
    visit = run(sample(1.0, prefix=deep), sample(0.0, prefix=bare)).visit
    assert (visit.cut, visit.prefix_length) == (4, 2)


@pytest.mark.parametrize("chosen", [{0: 2}, {-1: 0}])
def test_a_method_that_names_a_sample_or_a_slot_that_cannot_be_is_refused(chosen):
    class Far(RPO):
        def store(self, group):
            return Choice(chosen, "far")

    with pytest.raises(ValueError, match="method far stores .* of 2 samples"):
        run(sample(1.0), sample(1.0), method=Far())
