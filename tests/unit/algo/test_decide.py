"""Laws of what enters the cache after a step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.update import UPDATE_RULES, Choice
from openrlhf_rpo.algo.update.decide import decide
from openrlhf_rpo.config import UpdateOptions
from openrlhf_rpo.types import OWN, WRONG, Group, Path, Prefix, Question, Sample, Visit

QUESTION = Question("q", "1+1=", "2")
PARENT = Path("q", (1, 2, 3, 4, 5, 6), (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6), "stop", 1.0, 0.9, step=3, path_id=7)
PREFIX = Prefix(PARENT.token_ids[:4], PARENT.log_probs[:4], 2, PARENT)


def sample(score, length=3, prefix=PREFIX, reward=None, finish="stop"):
    ids = tuple(range(50, 50 + length))
    return Sample(prefix, ids, (-1.0,) * length, finish, score, score if reward is None else reward)


def run(*samples, has_path=True, step=8, seed=42, **options):
    return decide(Group(QUESTION, samples), has_path, UpdateOptions(**{"rule": "epsilon_greedy"} | options), step, seed)


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
    )
    assert decision.visit == Visit("q", 8, 2, 4, 6, 3, 2, "best", False)


def test_the_shaped_reward_decides_not_the_score():
    decision = run(sample(1.0, reward=0.6), sample(0.9, reward=0.8), epsilon=1.0)
    assert (decision.path.score, decision.path.reward) == (0.9, 0.8)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8), st.floats(0, 1), st.integers(0, 99))
def test_only_rewarded_samples_enter_by_default(scores, epsilon, step):
    decision = run(*(sample(score, i + 1) for i, score in enumerate(scores)), epsilon=epsilon, step=step)
    assert (decision.path is not None) == any(score > 0 for score in scores)
    assert decision.path is None or decision.path.score > 0


def test_admit_any_lets_a_wrong_answer_replace_the_path():
    """Two samples, the best never taken: the wrong one enters."""
    decision = run(sample(1.0), sample(0.0, 5), epsilon=0.0, admit="any")
    assert (decision.path.score, len(decision.path), decision.visit.outcome) == (0.0, 9, "random")


@pytest.mark.parametrize("on_all_wrong", ["keep", "reset"])
def test_admit_any_never_resets(on_all_wrong):
    decision = run(sample(0.0), sample(0.0), admit="any", on_all_wrong=on_all_wrong)
    assert decision.path is not None and not decision.visit.start_bare


def test_after_a_group_without_a_rewarded_sample_the_next_one_starts_bare():
    decision = run(sample(0.0), sample(-1.0))
    assert decision.path is None
    assert (decision.visit.outcome, decision.visit.start_bare, decision.visit.n_rewarded) == ("reset", True, 0)


def test_keep_goes_on_with_the_path_as_it_is():
    decision = run(sample(0.0), on_all_wrong="keep")
    assert decision.path is None
    assert (decision.visit.outcome, decision.visit.start_bare) == ("no_rewarded_sample", False)


def test_without_a_cached_path_there_is_nothing_to_reset():
    decision = run(sample(0.0, prefix=Prefix()), has_path=False)
    assert (decision.path, decision.visit.outcome) == (None, "no_rewarded_sample")


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4), st.sampled_from(["rewarded", "any"]))
def test_update_off_keeps_the_initial_cache(scores, admit):
    decision = run(*map(sample, scores), enable=False, admit=admit)
    assert decision.path is None
    assert (decision.visit.outcome, decision.visit.start_bare) == ("update_off", False)


@pytest.mark.parametrize("prefix", [Prefix(), Prefix((), (), 6, PARENT)], ids=["fresh", "everything cut"])
def test_a_path_that_inherits_no_token_has_no_parent(prefix):
    path = run(sample(1.0, prefix=prefix)).path
    assert (path.parent_id, path.prefix_length, path.token_ids, path.log_probs) == (None, 0, (50, 51, 52), (-1.0,) * 3)


def test_a_path_on_a_prefix_without_log_probs_has_none():
    assert run(sample(1.0, prefix=Prefix((1, 2), None, 4, PARENT))).path.log_probs is None


def test_the_visit_remembers_the_shortest_path_right_or_wrong():
    assert run(sample(1.0, 9), sample(0.0, 1)).visit.shortest_path == 5


def test_a_resumed_run_decides_the_same():
    samples = [sample(1.0, i) for i in range(1, 9)]
    assert [run(*samples, step=step) for step in range(5)] == [run(*samples, step=step) for step in range(5)]
    assert len({run(*samples, step=step).path.token_ids for step in range(20)}) > 1


@pytest.mark.parametrize("unscored", [sample(None), Sample(PREFIX, (9,), (-1.0,), "stop", 1.0)])
def test_a_sample_without_score_or_reward_is_refused(unscored):
    with pytest.raises(ValueError, match="yet"):
        run(unscored)


def test_every_sample_in_its_own_place_keeps_its_parent_and_is_never_reset():
    decision = run(sample(0.0, 9), sample(0.0, 3), rule="every")
    assert [(p.slot, len(p), p.score, p.parent_id) for p in decision.paths] == [(0, 13, 0.0, 7), (1, 7, 0.0, 7)]
    assert (decision.visit.outcome, decision.visit.start_bare) == ("every", False)


def test_a_wrong_sample_is_kept_beside_the_right_one_and_alone_when_all_are_wrong():
    both = run(sample(0.0, 9), sample(1.0, 3), rule="right_and_wrong")
    assert (len(both.path), [(p.slot, len(p)) for p in both.others]) == (7, [(1, 13)])
    alone = run(sample(0.0, 9), rule="right_and_wrong")
    assert (alone.path, [p.slot for p in alone.paths], alone.visit.outcome) == (None, [1], "reset")


def test_a_visit_says_which_path_it_cut():
    wrong = replace(PREFIX, path=replace(PARENT, slot=WRONG))
    assert run(sample(1.0, prefix=wrong)).visit.slot == WRONG
    assert run(sample(1.0, prefix=Prefix())).visit.slot == OWN


def test_a_visit_to_several_depths_remembers_their_means():
    """A success rate of 1/2 is that of the mean depth, not of the first sample's."""
    deep, bare = PREFIX, Prefix((), (), 6, PARENT)
    visit = run(sample(1.0, prefix=deep), sample(0.0, prefix=bare)).visit
    assert (visit.cut, visit.prefix_length) == (4, 2)


def test_a_rule_that_names_a_sample_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(UPDATE_RULES, "epsilon_greedy", lambda context: Choice({0: 2}, "far"))
    with pytest.raises(ValueError, match="update rule epsilon_greedy: .0: 2. for 2 samples"):
        run(sample(1.0), sample(1.0))
