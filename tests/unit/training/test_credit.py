"""Samples that do not start alike: a method's baselines, and what it says of prefix tokens."""

import math

import pytest
import torch
from unit.training.making import (
    QUESTION,
    advantages_of,
    experiences_of,
    make,
    rows,
    sample,
    training_args,
    two_groups,
    without_kl,
)

from examples.methods.history import History
from examples.methods.tree import Tree
from openrlhf_rpo.algo.methods import Paper
from openrlhf_rpo.training.experience_maker import RPOExperienceMaker, is_prefix
from openrlhf_rpo.types import Group, Prefix, Visit


def at_depths(depths, scores, lengths):
    """One group whose samples keep so many tokens of a path."""
    members = [
        sample(Prefix(tuple(range(20, 20 + d)), (-0.1,) * d, 2), n, score)
        for d, n, score in zip(depths, lengths, scores, strict=True)
    ]
    return [Group(QUESTION, tuple(members))]


def tree_args(**changes):
    return training_args(
        "reinforce", rollout__batch_size=1, rollout__n_samples_per_prompt=4, algo__kl__init_coef=0, **changes
    )


def test_with_the_baseline_zero_a_reward_is_the_advantage():
    """Right samples of a group that agrees have one, too, and wrong ones none."""
    args = training_args("reinforce", rpo__advantage__baseline="zero")
    maker = make(RPOExperienceMaker, args)
    made = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, two_groups())))
    of_sample = {i: a[m > 0] for e in made for i, a, m in zip(e.index, e.advantages, e.action_mask, strict=True)}
    assert {i: a.unique().tolist() for i, a in of_sample.items()} == {0: [1.0], 1: [0.0], 2: [1.0], 3: [1.0]}


def of_samples(experiences, values):
    """Sample -> value, of values in the order of the micro-batches."""
    return dict(zip([i for e in experiences for i in e.index], values, strict=True))


def test_a_methods_baseline_reaches_the_advantages_whatever_the_micro_batches():
    """Rewards 1, 0, 1, 1 at depths 5, 5, 2, 2: b = 0, 1, 1, 1. Without a mean over the group r - b is the advantage."""
    maker = make(RPOExperienceMaker, tree_args(algo__advantage__no_std_norm=True), Tree())
    made = without_kl(experiences_of(maker, at_depths((5, 5, 2, 2), (1.0, 0.0, 1.0, 1.0), (3, 3, 3, 3))))
    made = maker.compute_advantages_and_returns(made)
    assert of_samples(made, [r for e in made for r in e.rewards.tolist()]) == {0: 1.0, 1: -1.0, 2: 0.0, 3: 0.0}
    assert of_samples(made, [r for e in made for r in e.info["reward"].tolist()]) == {0: 1.0, 1: 0.0, 2: 1.0, 3: 1.0}


def test_a_baseline_from_the_history_makes_a_group_that_agrees_teach():
    """All right, where one visit that wrote a half, 1 of 4 right, promised 0.3: b = (2 * 0.3 + 3) / 5."""
    maker = make(RPOExperienceMaker, tree_args(), History())
    visits = (Visit("q", 1, 2, 2, 9, 4, 1, "best"),)
    members = tuple(sample(Prefix((20, 21), (-0.1, -0.1), 2), 3, 1.0) for _ in range(4))
    made = without_kl(experiences_of(maker, [Group(QUESTION, members, visits)]))
    made = maker.compute_advantages_and_returns(made)
    assert [r for e in made for r in e.rewards.tolist()] == pytest.approx([1 - 3.6 / 5] * 4)


SEGMENTS = Tree(tree_segments=True)


def test_a_segment_is_credited_with_what_changed_between_its_ends():
    """Rewards 1, 1, 0, 1 at depths 5, 5, 2, 2: tokens 3 to 5 of the path are worth V(5) - V(2) = 1/2."""
    groups = at_depths((5, 5, 2, 2), (1.0, 1.0, 0.0, 1.0), (3, 3, 3, 3))
    maker = make(RPOExperienceMaker, tree_args(), SEGMENTS)
    found = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups)))
    by_sample = {i: (e, row) for e in found for row, i in enumerate(e.index)}
    for i, (depth, of_response, of_segment) in enumerate([(5, 0.0, 0.5), (5, 0.0, 0.5), (2, -1.0, None), (2, 1.0, None)]):
        e, row = by_sample[i]
        mask, prefix = e.action_mask[row] > 0, is_prefix(e)[row]
        assert mask.nonzero().flatten().tolist() == list(range(4, 10) if depth == 5 else range(4, 7))
        assert e.returns[row][mask & ~prefix].tolist() == pytest.approx([of_response] * 3)
        assert e.returns[row][prefix].tolist() == pytest.approx([of_segment] * 3 if depth == 5 else [])


def group_norm_args():
    return training_args("group_norm", rollout__batch_size=1, rollout__n_samples_per_prompt=4, algo__kl__init_coef=0)


def test_a_segments_advantage_is_in_the_unit_of_the_others():
    """group_norm: rewards 1, 1, 0, 1 have the standard deviation 1/2, so that 1/2 becomes 1."""
    groups = at_depths((5, 5, 2, 2), (1.0, 1.0, 0.0, 1.0), (3, 3, 3, 3))
    maker = make(RPOExperienceMaker, group_norm_args(), SEGMENTS)
    found = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups)))
    assert [a for e in found for a in e.advantages[is_prefix(e)].tolist()] == pytest.approx([1.0] * 6)


def test_a_segments_unit_is_of_the_rewards_and_not_of_what_a_baseline_leaves_of_them():
    """Rewards agree within each depth, so that the baseline leaves nothing: 1 / sqrt(1/3), and 0 for the responses."""
    groups = at_depths((5, 5, 2, 2), (1.0, 1.0, 0.0, 0.0), (3, 3, 3, 3))
    maker = make(RPOExperienceMaker, group_norm_args(), SEGMENTS)
    found = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups)))
    assert [a for e in found for a in e.advantages[is_prefix(e)].tolist()] == pytest.approx([math.sqrt(3)] * 6)
    assert not any(e.advantages[(e.action_mask > 0) & ~is_prefix(e)].any() for e in found)


def test_with_one_depth_the_baseline_changes_nothing_that_is_normalized():
    groups = at_depths((4, 4, 4, 4), (1.0, 0.0, 1.0, 1.0), (3, 2, 4, 1))
    plain, ours = advantages_of(groups, group_norm_args()), advantages_of(groups, group_norm_args(), Tree())
    for a, b in zip(rows(plain), rows(ours), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Says(Paper):
    """What it says of prefix tokens and baselines depends on how many samples of the group are right."""

    answers = {}

    def prefix_advantages(self, group, rewards):
        return self.answers.get("prefix_advantages", {}).get(sum(rewards))

    def baselines(self, group, rewards):
        return self.answers.get("baselines", {}).get(sum(rewards))


def saying(what, estimator, **answers):
    """The advantages of ``two_groups``, the first with one right sample, the second with two, under such a method."""
    method = type("Saying", (Says,), {"answers": {what: {1.0: answers["one_right"], 2.0: answers["two_right"]}}})()
    maker = make(RPOExperienceMaker, training_args(estimator, algo__kl__init_coef=0), method)
    return maker.compute_advantages_and_returns(without_kl(experiences_of(maker, two_groups())))


def of_prefixes(experiences):
    """Sample -> the advantage of its prefix tokens."""
    found = {i: e.advantages[row][is_prefix(e)[row]] for e in experiences for row, i in enumerate(e.index)}
    return {i: values.unique().tolist() for i, values in sorted(found.items())}


def test_a_group_without_prefix_advantages_leaves_the_others_theirs():
    made = saying("prefix_advantages", "dr_grpo", one_right=[0.25, 0.75], two_right=None)
    assert of_prefixes(made) == {0: [0.25], 1: [0.75], 2: [0.0], 3: [0.0]}
    made = saying("prefix_advantages", "dr_grpo", one_right=None, two_right=[0.25, 0.75])
    assert of_prefixes(made) == {0: [0.5], 1: [-0.5], 2: [0.25], 3: [0.75]}


def test_under_group_norm_the_prefix_of_a_group_that_agrees_has_no_unit_and_no_advantage():
    """Its standard deviation is 0: half a unit more than the history promised was 500,000,000."""
    made = saying("prefix_advantages", "group_norm", one_right=[0.5, 0.5], two_right=[0.5, 0.5])
    assert of_prefixes(made) == {0: [pytest.approx(0.5**0.5)], 1: [pytest.approx(0.5**0.5)], 2: [0.0], 3: [0.0]}


@pytest.mark.parametrize("what", ["baselines", "prefix_advantages"])
@pytest.mark.parametrize("answer", [[0.0], [0.0, 0.0, 9.0], [0.0, math.nan]])
def test_what_a_method_says_is_one_finite_number_a_sample(what, answer):
    with pytest.raises(ValueError, match=f"method saying: {what} of 2 samples must be as many finite numbers"):
        saying(what, "reinforce", one_right=answer, two_right=None)
