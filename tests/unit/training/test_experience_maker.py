"""Which tokens the advantages reach, held against upstream's experience maker and against hand-worked numbers."""

import copy
import math

import pytest
import torch
from unit.training.making import (
    ESTIMATORS,
    PREFIX,
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

from examples.methods.tree import Tree
from openrlhf_rpo.algo.methods import RPO, Paper
from openrlhf_rpo.training.experience_maker import RPOExperienceMaker, is_prefix, rollout_log_prob_gap
from openrlhf_rpo.types import Group, Prefix
from openrlhf_rpo.upstream import RemoteExperienceMaker

# ── Which tokens are prefix ──


def test_prefix_tokens_are_those_with_loss_before_the_response():
    """Rows of 3 + 4 + 3 and 3 + 4 + 2 tokens, the second padded."""
    [batch] = experiences_of(make(RPOExperienceMaker, training_args(), Paper()), two_groups()[:1])
    #                                             p1 p2 |a  b  c  d |x  y  <end>
    assert is_prefix(batch).int().tolist() == [[0, 0, 1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize(("prefix", "method"), [(PREFIX, RPO()), (Prefix(), Paper())])
def test_without_prefix_tokens_in_the_loss_there_are_none(prefix, method):
    [batch] = experiences_of(make(RPOExperienceMaker, training_args(), method), two_groups(prefix)[:1])
    assert not is_prefix(batch).any()


def test_the_log_prob_gap_looks_at_responses_only():
    """mean(|-0.5 - -0.7|, |-0.5 - -0.1|, 0) = 0.2; the prefix, 5 nats or more away, does not count."""
    maker = make(RPOExperienceMaker, training_args(), Paper())
    [batch] = experiences_of(maker, [Group(QUESTION, (sample(PREFIX, 3, 1.0),))])
    batch.action_log_probs = torch.tensor([[9.0, 9.0, -5.0, -5.0, -5.0, -5.0, -0.7, -0.1, -0.5]])
    batch.rollout_log_probs[0, 3] = -math.inf
    torch.testing.assert_close(rollout_log_prob_gap(batch), torch.tensor([0.2]))


def test_the_log_prob_gap_of_a_row_without_response_tokens_is_zero():
    maker = make(RPOExperienceMaker, training_args(), Paper())
    [batch] = experiences_of(maker, two_groups()[:1])
    batch.action_mask[1] = 0
    gaps = rollout_log_prob_gap(batch)
    assert gaps[0] > 0 and gaps[1] == 0


# ── Every estimator ──


@pytest.mark.parametrize("method", [RPO(), Paper()])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_with_the_empty_prefix_the_advantages_are_upstreams(estimator, method):
    args = training_args(estimator)
    ours = advantages_of(two_groups(Prefix()), args, method)
    theirs = advantages_of(two_groups(Prefix()), copy.deepcopy(args), cls=RemoteExperienceMaker)
    for a, b in zip(ours, theirs, strict=True):
        for field in ("advantages", "returns", "response_length"):
            assert torch.equal(getattr(a, field), getattr(b, field)), field


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_masked_prefix_acts_as_a_longer_prompt(estimator):
    """The advantages of the response are those of a run that took prompt and prefix for its prompt."""
    args = training_args(estimator)
    maker = make(RPOExperienceMaker, args)
    replayed = without_kl(experiences_of(maker, two_groups()))
    longer = without_kl(experiences_of(maker, two_groups(Prefix())))
    for e in (*replayed, *longer):
        e.values = None if e.values is None else torch.full_like(e.values, 0.5)
    maker.compute_advantages_and_returns(replayed)
    make(RemoteExperienceMaker, args).compute_advantages_and_returns(longer)
    for a, b in zip(replayed, longer, strict=True):
        torch.testing.assert_close(a.advantages[a.action_mask > 0], b.advantages[b.action_mask > 0])


def test_group_norm_worked_example():
    """Scores 1 and 0: mean 0.5, deviation 0.7071, so +-0.7071; equal scores: 0. KL is off."""
    maker = make(RPOExperienceMaker, training_args())
    experiences = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, two_groups())))
    expected = [0.5**0.5, -(0.5**0.5), 0.0, 0.0]
    for row, mask, value in zip(rows(experiences), rows(experiences, "action_mask"), expected, strict=True):
        torch.testing.assert_close(row[mask > 0], torch.full((int(mask.sum()),), value))


@pytest.mark.parametrize("reward", [0.1, 0.2, 1.2])
@pytest.mark.parametrize("estimator", ["rloo", "reinforce_baseline", "group_norm", "dr_grpo"])
def test_equal_rewards_of_any_value_teach_nothing(estimator, reward):
    """Their mean in float32 is not any of them; group_norm divided the difference by 1e-9."""
    args = training_args(estimator, rollout__n_samples_per_prompt=8, train__batch_size=16)
    groups = [Group(QUESTION, tuple(sample(PREFIX, 3, reward) for _ in range(8))) for _ in range(2)]
    maker = make(RPOExperienceMaker, args)
    experiences = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups)))
    assert not any(row.any() for row in rows(experiences))


@pytest.mark.parametrize("estimator", ["rloo", "group_norm", "dr_grpo"])
def test_centred_advantages_cancel_on_the_shared_prefix(estimator):
    """The whole path in the loss, equal weights: what the group says about a shared token adds up to nothing."""
    maker = make(RPOExperienceMaker, training_args(estimator), Paper())
    experiences = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, two_groups())))
    on_prefix = torch.stack([row[2:6] for row in rows(experiences)])
    assert on_prefix[:2].abs().min() > 0.1
    torch.testing.assert_close(on_prefix[:2].sum(0), torch.zeros(4))
    torch.testing.assert_close(on_prefix[2:].sum(0), torch.zeros(4))


# ── Length penalties ──


def penalized(prefix, **changes):
    """Rewards after the penalty, of responses of 3, 2, 4 and 1 tokens that all scored 1."""
    args = training_args("reinforce", rollout__max_new_tokens=8, reward__overlong_buffer_len=4, **changes)
    experiences = advantages_of(two_groups(prefix, scores=(1.0,) * 4), args)
    assert [n for e in experiences for n in e.response_length.tolist()] == [3, 2, 4, 1]  # as they were
    return [reward.item() for reward in rows(experiences, "rewards")]


def test_the_overlong_penalty_sees_the_length_of_the_path():
    """Paths of 7, 6, 8 and 5 tokens, free up to 8 - 4 = 4: 3/4, 2/4, 4/4 and 1/4 are taken off."""
    assert penalized(PREFIX) == [0.25, 0.5, 0.0, 0.75]


def test_the_overlong_penalty_grows_up_to_what_the_question_leaves_of_the_context():
    """A prompt of 3 tokens in a context of 10 leaves 7: free up to 3."""
    assert len(QUESTION.prompt_ids) == 3
    assert penalized(PREFIX, data__max_len=10) == [0.0, 0.25, 0.0, 0.5]


def test_without_a_prefix_the_overlong_penalty_is_upstreams():
    assert penalized(Prefix()) == [1.0, 1.0, 1.0, 1.0]


def test_the_penalty_for_not_stopping_is_upstreams():
    args = training_args(reward__stop_properly_penalty_coef=0.5)
    groups = [Group(QUESTION, (sample(PREFIX, 3, 1.0, "length"), sample(PREFIX, 3, 1.0)))]
    [e] = advantages_of(groups, args)
    assert e.rewards.tolist() == [0.5, 1.0]


def test_a_penalty_comes_before_the_baseline_and_is_logged_without_it():
    """Rewards 1, 1, 1, 0, the third cut off: 1, 1, 0.5, 0, so b = 0.5, 0.5, 2/3, 5/6. None gains by being cut off."""
    args = training_args(
        "reinforce",
        rollout__n_samples_per_prompt=4,
        rollout__batch_size=1,
        reward__stop_properly_penalty_coef=0.5,
    )
    members = (sample(PREFIX, 3, 1.0), sample(PREFIX, 3, 1.0), sample(PREFIX, 3, 1.0, "length"), sample(PREFIX, 3, 0.0))
    experiences = advantages_of([Group(QUESTION, members)], args, Tree())
    order = [i for e in experiences for i in e.index]
    rewards, logged = (
        dict(zip(order, [x.item() for x in of], strict=True))
        for of in ([r for e in experiences for r in e.rewards], [r for e in experiences for r in e.info["reward"]])
    )
    assert rewards == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5 - 2 / 3, 3: -5 / 6})
    assert logged == {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.0}
    assert args.reward.stop_properly_penalty_coef == 0.5


# ── Scores of a reward model ──


@pytest.fixture
def reward_model(monkeypatch):
    """Upstream's forward passes, with a model whose score of a sample is its response's length."""

    def forward(self, batches):
        for batch in batches:
            batch.rewards = batch.response_length.to(torch.bfloat16)
            batch.info["reward"] = batch.rewards
            batch.action_log_probs = batch.rollout_log_probs
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", forward)


def unscored(maker):
    members = [sample(PREFIX, n, None) for n in (3, 2, 4, 1)]
    return experiences_of(maker, [Group(QUESTION, tuple(members[:2])), Group(QUESTION, tuple(members[2:]))])


@pytest.mark.parametrize("shuffled", [False, True])
def test_scores_of_a_reward_model_are_shaped_in_their_groups(reward_model, shuffled):
    """Scores 3, 2 and 4, 1 of paths of 7, 6 and 8, 5 tokens: the longer one of each group by 1 / (1 + e^x)."""
    maker = make(RPOExperienceMaker, training_args(rpo__shaping__alpha=1.0, rpo__shaping__min=0, rpo__shaping__max=9))
    batches = unscored(maker)
    made = maker.make_experience(batches[::-1] if shuffled else batches)
    by_index = {i: k for e in made for i, k in zip(e.index, zip(e.scores, e.rewards, strict=True), strict=True)}
    longer = [1 / (1 + math.exp(x)) for x in (0.5, -0.5, 1.5, -1.5)]
    assert [float(by_index[i][0]) for i in range(4)] == [3, 2, 4, 1]
    assert [float(by_index[i][1]) for i in range(4)] == pytest.approx(
        [score * x for score, x in zip((3, 2, 4, 1), longer, strict=True)]
    )
    for e in made:
        assert (e.info["score"].tolist(), e.info["reward"].tolist()) == (e.scores.tolist(), e.rewards.tolist())
        assert e.rewards.dtype == torch.float32


def test_scores_given_at_rollout_are_not_shaped_again(reward_model, monkeypatch):
    def forward(self, batches):
        for batch in batches:
            batch.action_log_probs = batch.rollout_log_probs + 0.25
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", forward)
    maker = make(RPOExperienceMaker, training_args(rpo__shaping__alpha=1.0))
    made = maker.make_experience(experiences_of(maker, two_groups()))
    assert [r.item() for r in rows(made, "rewards")] == [1.0, 0.0, 1.0, 1.0]
    torch.testing.assert_close(torch.cat([rollout_log_prob_gap(e) for e in made]), torch.full((4,), 0.25))


def test_upstreams_own_penalties_are_there_again_afterwards():
    from openrlhf.trainer.ppo_utils import experience_maker, length_penalty

    advantages_of(two_groups(), training_args())
    assert experience_maker.apply_length_penalties is length_penalty.apply_length_penalties


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_returns_and_advantages_are_upstreams_to_the_last_bit(gamma):
    ours, theirs = (make(maker, training_args()) for maker in (RPOExperienceMaker, RemoteExperienceMaker))
    values, rewards = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 50)
    mask[0, :7] = mask[1, 30:] = 0
    asked = rewards, mask, gamma
    assert torch.equal(ours.get_cumulative_returns(*asked), theirs.get_cumulative_returns(*asked))
    for lambd in (1.0, 0.95):
        found, expected = (maker.get_advantages_and_returns(values, *asked, lambd) for maker in (ours, theirs))
        assert all(map(torch.equal, found, expected))
