"""The figures of an evaluation, worked by hand."""

import pytest

from openrlhf_rpo.evaluation.figures import compare, powers_of_two, summary


def part(*scores, tokens=None, truncated=None):
    n = len(scores)
    return {"scores": list(scores), "tokens": tokens or [10] * n, "truncated": truncated or [False] * n}


def test_figures_worked_by_hand():
    parts = [part(1, 0, 1, 1, tokens=[10, 40, 10, 10], truncated=[False, True, False, False]), part(0, 0, 0, 1)]
    found = summary(parts, repeats=2, ks=[1, 2, 4])
    assert found["accuracy"] == found["score"] == found["pass_at_k"]["1"] == 0.5
    assert found["by_repeat"] == [0.25, 0.75]  # samples 0 and 1 of each question, then 2 and 3
    assert found["repeat_sd"] == pytest.approx(0.5 / 2**0.5)
    assert found["pass_at_k"]["2"] == pytest.approx((1 + 0.5) / 2)
    assert found["pass_at_k"]["4"] == 1
    assert found["tokens"] == pytest.approx(110 / 8) and found["tokens_max"] == 40
    assert found["tokens_right"] == 10 and found["tokens_wrong"] == pytest.approx(70 / 4)
    assert found["truncated"] == 1 / 8


def test_one_repeat_has_no_spread_and_no_right_answer_no_length():
    found = summary([part(0, -1)], repeats=1, ks=[1])
    assert found["repeat_sd"] is None and found["tokens_right"] is None and found["accuracy"] == 0 and found["score"] == -0.5


def test_agreement_is_the_share_of_samples_that_judge_and_reward_see_alike():
    judged = [part(1, 0, 0, 1) | {"rewards": [1.0, 0.0, 1.0, 0.5]}, part(0, 0, 0, 0) | {"rewards": [0.0, -1.0, 0.0, 1.0]}]
    found = summary(judged, repeats=1, ks=[1])
    assert found["agreement"] == 6 / 8 and found["score"] == 2.5 / 8  # of the reward, whoever judges
    assert summary([part(1, 0)], repeats=1, ks=[1])["agreement"] is None


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (2, [1, 2]), (7, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_the_usual_ks_are_the_powers_of_two(n, ks):
    assert powers_of_two(n) == ks


def test_pairs_are_made_by_question_not_by_place():
    ours = {"a": part(1, 1), "b": part(0, 0), "c": part(1, 0)}
    theirs = {"c": part(1, 0), "b": part(0, 1), "a": part(0, 0)}
    found = compare(ours, theirs)
    assert found["mean"] == pytest.approx((1 - 0.5) / 3)
    assert (found["better"], found["worse"], found["significant"]) == (1, 1, False)


def test_other_questions_cannot_be_compared():
    with pytest.raises(ValueError, match="2 and 1, of which 1 are the same"):
        compare({"a": part(1), "b": part(1)}, {"a": part(1)})


@pytest.mark.parametrize(("n", "significant"), [(1, False), (5, False), (6, True)])
def test_a_few_questions_are_not_significant_although_all_are_better(n, significant):
    ours, theirs = ({str(i): part(score) for i in range(n)} for score in (1, 0))
    found = compare(ours, theirs)
    assert (found["low"], found["better"], found["significant"]) == (1, n, significant)


@pytest.mark.parametrize(("differ", "significant"), [(4, False), (5, False), (6, True)])
def test_ties_do_not_make_a_few_questions_significant(differ, significant):
    """4 better, 0 worse: by chance in 1 of 8 cases (sign test), whatever the number of ties."""
    ours = {str(i): part(i < differ) for i in range(30)}
    found = compare(ours, {name: part(0) for name in ours})
    assert found["low"] > 0 and (found["better"], found["worse"]) == (differ, 0)
    assert found["significant"] is significant
