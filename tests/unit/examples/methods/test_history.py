"""Laws of the value estimate by cut, and of the baseline that it gives."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.methods.history import WORTH, History, expected_score, share_to_write
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import Group, Prefix, Question, Sample, Visit


def visit(cut, prefix, rewarded, n=4):
    return Visit("q", 1, cut, prefix, 100, n, rewarded, "best")


VISITS = st.lists(st.builds(visit, st.integers(0, 90), st.integers(0, 90), st.integers(0, 4)), max_size=5)


def test_what_one_visit_says_of_other_cuts():
    """Half written anew, 1 of 4 right: q = 1.5 / 5, and half is expected to go that way again."""
    seen = [visit(50, 50, 1)]
    assert expected_score(seen, 0.5) == pytest.approx(0.3)
    assert expected_score(seen, 0.25) == pytest.approx(0.3**0.5) and expected_score(seen, 1.0) == pytest.approx(0.09)


def test_without_visits_a_whole_path_is_right_half_the_time_and_a_kept_path_always():
    assert expected_score([], 1.0) == 0.5 and expected_score([], 0.0) == 1.0
    assert expected_score([visit(0, 80, 4)], 1.0) == 0.5  # nothing was written


def test_the_newest_visit_counts_twice_the_one_before():
    old, new = visit(0, 0, 0), visit(0, 0, 4)
    risks = [-math.log(0.5 / 5), -math.log(4.5 / 5)]
    assert expected_score([old, new], 1.0) == pytest.approx(math.exp(-(0.5 * risks[0] + risks[1]) / 1.5))


@given(VISITS, st.floats(0, 1), st.floats(0, 1))
def test_a_chance_is_one_and_falls_with_what_must_be_written(visits, a, b):
    low, high = sorted([a, b])
    assert 0 < expected_score(visits, high) <= expected_score(visits, low) <= 1


def test_the_bare_question_is_written_whole():
    assert share_to_write(0, 0) == 1.0 and share_to_write(30, 90) == 0.25 and share_to_write(40, 0) == 1.0


def group(n, visits=(), cut=0, kept=0):
    samples = (Sample(Prefix((1,) * kept, cut=cut), (9,), (-1.0,), "stop"),) * n
    return Group(Question("q", "1+1=", "2"), samples, tuple(visits))


def test_a_group_that_agrees_differs_from_what_was_expected():
    """One visit, half written and 1 of 4 right, promises 0.3 for a half. Four right there: all are praised."""
    promised = group(4, [visit(50, 50, 1)], cut=50, kept=50)
    assert History().baselines(promised, [1.0] * 4) == pytest.approx([(WORTH * 0.3 + 3) / (WORTH + 3)] * 4)
    assert History().baselines(group(1), [1.0]) == [0.5]  # nobody to compare with but what is promised


@given(VISITS, st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), st.data())
def test_a_samples_own_reward_does_not_change_its_baseline(visits, rewards, data):
    i = data.draw(st.integers(0, len(rewards) - 1))
    before = History().baselines(group(len(rewards), visits), rewards)[i]
    rewards[i] = 7.0
    assert History().baselines(group(len(rewards), visits), rewards)[i] == pytest.approx(before)


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo", "reinforce_baseline"])
def test_it_is_lost_in_an_estimator_that_takes_the_groups_mean(estimator):
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator=estimator)),
        rpo=SimpleNamespace(init=SimpleNamespace(mode="progressive")),
    )
    with pytest.raises(UsageError, match="add --algo.advantage.estimator reinforce"):
        History().check_run(args)
    args.algo.advantage.estimator = "reinforce"
    History().check_run(args)
    assert History().reads_history
