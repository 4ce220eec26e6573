"""Which tokens the advantages reach, held against upstream's experience maker and against hand-worked numbers."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_rpo.cli import options
from openrlhf_rpo.config import PrefixLossOptions, RPOConfig
from openrlhf_rpo.rollout.experience import to_experiences
from openrlhf_rpo.training.experience_maker import (
    RPOExperienceMaker,
    is_prefix,
    prefix_token_weights,
    rollout_log_prob_gap,
    subtract_baselines,
    written_share,
)
from openrlhf_rpo.types import Group, Prefix, Question, Sample
from openrlhf_rpo.upstream import RemoteExperienceMaker

PROMPT = (10, 11, 12)
QUESTION = Question("q", "1+1?", "2")
PREFIX = Prefix((20, 21, 22, 23), (-0.1, -0.2, -0.3, -0.4), 2)
ESTIMATORS = ["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"]


def training_args(estimator="group_norm", **changes):
    """Two groups of two samples, micro-batches of three, so that a group is torn apart."""
    words = {
        "actor.model_name_or_path": "model",
        "actor.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "rpo.reward.functions": "math",
        "algo.advantage.estimator": estimator,
        "rollout.batch_size": 2,
        "rollout.n_samples_per_prompt": 2,
        "rollout.micro_batch_size": 3,
        "train.batch_size": 4,
        "vllm.num_engines": 1,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return options.parse([word for name, value in words.items() for word in (f"--{name}", str(value))])


def make(cls, args, mode="mask", cap=1.0, shape=None):
    strategy = SimpleNamespace(args=args)
    maker = cls(None, None, None, None, SimpleNamespace(value=0.1), strategy, SimpleNamespace(pad_token_id=0))
    if cls is RPOExperienceMaker:
        config = RPOConfig.from_namespace(args.rpo)
        maker.configure(replace(config, prefix_loss=PrefixLossOptions(mode=mode, cap=cap)), shape)
    return maker


def sample(prefix, length, score, finish="stop"):
    return Sample(prefix, tuple(range(30, 30 + length)), (-0.5,) * length, finish, score, score)


def two_groups(prefix=PREFIX, lengths=(3, 2, 4, 1), scores=(1.0, 0.0, 1.0, 1.0)):
    members = [sample(prefix, n, score) for n, score in zip(lengths, scores, strict=True)]
    return [Group(QUESTION, tuple(members[:2])), Group(QUESTION, tuple(members[2:]))]


def experiences_of(maker, groups, mode="mask"):
    """As they are after the forward passes: log-probs, values and KL are arbitrary numbers, the same each time."""
    generator = torch.Generator().manual_seed(0)
    samples = [e for group in groups for e in to_experiences(group, PROMPT, mode)]
    batches = maker.split_rollout_samples(samples)
    for batch in batches:
        shape = batch.action_mask.shape
        batch.action_log_probs = -torch.rand(shape, generator=generator)
        batch.values = torch.rand(shape, generator=generator) if maker.advantage_estimator == "gae" else None
        batch.kl = 0.01 * torch.rand(shape, generator=generator)
    return batches


def advantages_of(groups, args, mode="mask", cap=1.0, cls=RPOExperienceMaker):
    maker = make(cls, args, mode, cap)
    return maker.compute_advantages_and_returns(experiences_of(maker, groups, mode))


def rows(experiences, field="advantages"):
    return [row for e in experiences for row in getattr(e, field).unbind()]


def without_kl(experiences):
    for e in experiences:
        e.kl = torch.zeros_like(e.kl)
    return experiences


# ── Which tokens are prefix ──


def test_prefix_tokens_are_those_with_loss_before_the_response():
    """Rows of 3 + 4 + 3 and 3 + 4 + 2 tokens, the second padded."""
    [batch] = experiences_of(make(RPOExperienceMaker, training_args()), two_groups()[:1], "include")
    #                                             p1 p2 |a  b  c  d |x  y  <end>
    assert is_prefix(batch).int().tolist() == [[0, 0, 1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize(("prefix", "mode"), [(PREFIX, "mask"), (Prefix(), "include")])
def test_without_prefix_tokens_in_the_loss_there_are_none(prefix, mode):
    [batch] = experiences_of(make(RPOExperienceMaker, training_args()), two_groups(prefix)[:1], mode)
    assert not is_prefix(batch).any()


def test_the_log_prob_gap_looks_at_responses_only():
    """mean(|-0.5 - -0.7|, |-0.5 - -0.1|, 0) = 0.2; the prefix, 5 nats away, does not count."""
    [batch] = experiences_of(
        make(RPOExperienceMaker, training_args()), [Group(QUESTION, (sample(PREFIX, 3, 1.0),))], "include"
    )
    batch.action_log_probs = torch.tensor([[9.0, 9.0, -5.0, -5.0, -5.0, -5.0, -0.7, -0.1, -0.5]])
    torch.testing.assert_close(rollout_log_prob_gap(batch), torch.tensor([0.2]))


# ── Weights of prefix tokens ──

LOG_PROBS = st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=6)


@settings(deadline=None)
@given(LOG_PROBS, st.floats(0.1, 10))
def test_prefix_token_weights_are_those_of_the_formula(pairs, cap):
    now, then = zip(*pairs, strict=True)
    prefix = Prefix(tuple(range(20, 20 + len(pairs))), then, 1)
    [e] = to_experiences(Group(QUESTION, (sample(prefix, 2, 1.0),)), PROMPT, "weighted")
    e.action_log_probs = torch.tensor([[-1.0, -1.0, *now, -2.0, -2.0]])
    weights = prefix_token_weights(e, cap)[0].tolist()
    assert weights[:2] == [1.0, 1.0] and weights[-2:] == [1.0, 1.0]
    expected = [cap if p - mu > math.log(cap) else math.exp(p - mu) for p, mu in zip(now, then, strict=True)]
    assert weights[2:-2] == pytest.approx(expected, rel=1e-4, abs=1e-12)


def test_weights_scale_the_advantages_of_the_prefix_alone():
    args = training_args()
    included = advantages_of(two_groups(), args, "include")
    weighted = advantages_of(two_groups(), args, "weighted", cap=0.8)
    for plain, ours in zip(included, weighted, strict=True):
        torch.testing.assert_close(ours.advantages, plain.advantages * prefix_token_weights(ours, 0.8))
        response = (ours.action_mask > 0) & ~is_prefix(ours)
        torch.testing.assert_close(ours.advantages[response], plain.advantages[response])
        torch.testing.assert_close(ours.returns, plain.returns)


# ── Every estimator ──


@pytest.mark.parametrize("mode", ["mask", "include", "weighted"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_with_the_empty_prefix_the_advantages_are_upstreams(estimator, mode):
    args = training_args(estimator)
    ours = advantages_of(two_groups(Prefix()), args, mode)
    theirs = advantages_of(two_groups(Prefix()), copy.deepcopy(args), mode, cls=RemoteExperienceMaker)
    for a, b in zip(ours, theirs, strict=True):
        for field in ("advantages", "returns", "rewards", "response_length"):
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


@pytest.mark.parametrize("estimator", ["rloo", "group_norm", "dr_grpo"])
def test_centred_advantages_cancel_on_the_shared_prefix(estimator):
    """include, equal weights: what the group says about a shared token adds up to nothing."""
    maker = make(RPOExperienceMaker, training_args(estimator), "include")
    experiences = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, two_groups(), "include")))
    on_prefix = torch.stack([row[2:6] for row in rows(experiences)])
    assert on_prefix[:2].abs().min() > 0.1
    torch.testing.assert_close(on_prefix[:2].sum(0), torch.zeros(4))
    torch.testing.assert_close(on_prefix[2:].sum(0), torch.zeros(4))


# ── Length penalties ──


def penalized(prefix, **changes):
    """Rewards after the penalty, of responses of 3, 2, 4 and 1 tokens that all scored 1."""
    args = training_args(rollout__max_new_tokens=8, reward__overlong_buffer_len=4, **changes)
    experiences = advantages_of(two_groups(prefix, scores=(1.0,) * 4), args)
    assert [n for e in experiences for n in e.response_length.tolist()] == [3, 2, 4, 1]  # as they were
    return [reward.item() for reward in rows(experiences, "rewards")]


def test_the_overlong_penalty_sees_the_length_of_the_path():
    """Paths of 7, 6, 8 and 5 tokens, free up to 8 - 4 = 4: 3/4, 2/4, 4/4 and 1/4 are taken off."""
    assert penalized(PREFIX) == [0.25, 0.5, 0.0, 0.75]


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
        rpo__advantage__baseline="depth",
    )
    members = (sample(PREFIX, 3, 1.0), sample(PREFIX, 3, 1.0), sample(PREFIX, 3, 1.0, "length"), sample(PREFIX, 3, 0.0))
    experiences = advantages_of([Group(QUESTION, members)], args)
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
def test_scores_of_a_reward_model_are_shaped_in_the_order_of_the_samples(reward_model, shuffled):
    seen = []

    def shape(scores):
        seen.append(scores)
        return [10 * i + score for i, score in enumerate(scores)]

    maker = make(RPOExperienceMaker, training_args(), shape=shape)
    batches = unscored(maker)
    made = maker.make_experience(batches[::-1] if shuffled else batches)
    assert seen == [[3.0, 2.0, 4.0, 1.0]]
    by_index = {i: k for e in made for i, k in zip(e.index, zip(e.scores, e.rewards, strict=True), strict=True)}
    assert [tuple(map(float, by_index[i])) for i in range(4)] == [(3, 3), (2, 12), (4, 24), (1, 31)]
    for e in made:
        assert (e.info["score"].tolist(), e.info["reward"].tolist()) == (e.scores.tolist(), e.rewards.tolist())
        assert e.rewards.dtype == torch.float32


def test_scores_given_at_rollout_are_not_shaped_again(reward_model, monkeypatch):
    def forward(self, batches):
        for batch in batches:
            batch.action_log_probs = batch.rollout_log_probs + 0.25
        return batches

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", forward)
    maker = make(RPOExperienceMaker, training_args(), shape=lambda scores: pytest.fail("shaped"))
    made = maker.make_experience(experiences_of(maker, two_groups()))
    assert [r.item() for r in rows(made, "rewards")] == [1.0, 0.0, 1.0, 1.0]
    torch.testing.assert_close(torch.cat([e.info["rollout_log_prob_gap"] for e in made]), torch.full((4,), 0.25))


# ── Samples that do not start alike ──


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


@pytest.mark.parametrize(
    "estimator", ["reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"]
)
def test_with_the_baseline_zero_a_reward_is_the_advantage_whatever_the_estimator(estimator):
    """Right samples of a group that agrees have one, too, and wrong ones none."""
    args = training_args(estimator, rpo__advantage__baseline="zero")
    maker = make(RPOExperienceMaker, args)
    made = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, two_groups())))
    of_sample = {i: a[m > 0] for e in made for i, a, m in zip(e.index, e.advantages, e.action_mask, strict=True)}
    assert {i: a.unique().tolist() for i, a in of_sample.items()} == {0: [1.0], 1: [0.0], 2: [1.0], 3: [1.0]}
    assert args.algo.advantage.estimator == estimator


def test_a_baseline_by_depth_reaches_the_advantages_whatever_the_micro_batches():
    """Rewards 1, 0, 1, 1 at depths 5, 5, 2, 2: b = 0, 1, 1, 1. Without a mean over the group r - b is the advantage."""
    args = tree_args(rpo__advantage__baseline="depth")
    maker = make(RPOExperienceMaker, args)
    experiences = without_kl(experiences_of(maker, at_depths((5, 5, 2, 2), (1.0, 0.0, 1.0, 1.0), (3, 3, 3, 3))))
    subtract_baselines(experiences, 4)
    order = [i for e in experiences for i in e.index]
    rewards = [r for e in experiences for r in e.rewards.tolist()]
    assert dict(zip(order, rewards, strict=True)) == {0: 1.0, 1: -1.0, 2: 0.0, 3: 0.0}
    assert [r for e in experiences for r in e.info["reward"].tolist()] != rewards  # what is logged stays the reward


def test_a_baseline_from_the_history_makes_a_group_that_agrees_teach():
    """All right, where 0.25 and 1 were expected of two depths: b = (2 * 0.25 + 1) / 3, and 1."""
    maker = make(RPOExperienceMaker, tree_args(rpo__advantage__baseline="history"))
    [group] = at_depths((5, 5, 2, 2), (1.0, 1.0, 1.0, 1.0), (3, 3, 3, 3))
    members = [replace(s, expected=v) for s, v in zip(group.samples, (0.25, 0.25, 1.0, 1.0), strict=True)]
    experiences = without_kl(experiences_of(maker, [replace(group, samples=tuple(members))]))
    subtract_baselines(experiences, 4)
    order = [i for e in experiences for i in e.index]
    rewards = [r for e in experiences for r in e.rewards.tolist()]
    assert dict(zip(order, rewards, strict=True)) == pytest.approx({0: 0.5, 1: 0.5, 2: 0.0, 3: 0.0})


def test_a_segment_is_credited_with_what_changed_between_its_ends():
    """Rewards 1, 1, 0, 1 at depths 5, 5, 2, 2: tokens 3 to 5 of the path are worth V(5) - V(2) = 1/2."""
    groups = at_depths((5, 5, 2, 2), (1.0, 1.0, 0.0, 1.0), (3, 3, 3, 3))
    args = tree_args(rpo__advantage__baseline="depth")
    maker = make(RPOExperienceMaker, args, "segment")
    found = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups, "segment")))
    by_sample = {i: (e, row) for e in found for row, i in enumerate(e.index)}
    for i, (depth, of_response, of_segment) in enumerate([(5, 0.0, 0.5), (5, 0.0, 0.5), (2, -1.0, None), (2, 1.0, None)]):
        e, row = by_sample[i]
        mask, prefix = e.action_mask[row] > 0, is_prefix(e)[row]
        assert mask.nonzero().flatten().tolist() == list(range(4, 10) if depth == 5 else range(4, 7))
        assert e.returns[row][mask & ~prefix].tolist() == pytest.approx([of_response] * 3)
        assert e.returns[row][prefix].tolist() == pytest.approx([of_segment] * 3 if depth == 5 else [])


def test_a_segments_advantage_is_in_the_unit_of_the_others():
    """group_norm: rewards 1, 1, 0, 1 have the standard deviation 1/2, so that 1/2 becomes 1."""
    groups = at_depths((5, 5, 2, 2), (1.0, 1.0, 0.0, 1.0), (3, 3, 3, 3))
    args = training_args("group_norm", rollout__batch_size=1, rollout__n_samples_per_prompt=4, algo__kl__init_coef=0)
    maker = make(RPOExperienceMaker, args, "segment")
    found = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups, "segment")))
    assert [a for e in found for a in e.advantages[is_prefix(e)].tolist()] == pytest.approx([1.0] * 6)


def test_a_segments_unit_is_of_the_rewards_and_not_of_what_a_baseline_leaves_of_them():
    """Rewards agree within each depth, so that the baseline leaves nothing: 1 / sqrt(1/3), and 0 for the responses."""
    groups = at_depths((5, 5, 2, 2), (1.0, 1.0, 0.0, 0.0), (3, 3, 3, 3))
    changes = {"rollout__batch_size": 1, "rollout__n_samples_per_prompt": 4, "algo__kl__init_coef": 0}
    maker = make(RPOExperienceMaker, training_args("group_norm", rpo__advantage__baseline="depth", **changes), "segment")
    found = maker.compute_advantages_and_returns(without_kl(experiences_of(maker, groups, "segment")))
    assert [a for e in found for a in e.advantages[is_prefix(e)].tolist()] == pytest.approx([math.sqrt(3)] * 6)
    assert not any(e.advantages[(e.action_mask > 0) & ~is_prefix(e)].any() for e in found)


def test_with_one_depth_the_baseline_changes_nothing_that_is_normalized():
    groups = at_depths((4, 4, 4, 4), (1.0, 0.0, 1.0, 1.0), (3, 2, 4, 1))
    changes = {"rollout__batch_size": 1, "rollout__n_samples_per_prompt": 4}
    plain = advantages_of(groups, training_args("group_norm", **changes))
    ours = advantages_of(groups, training_args("group_norm", rpo__advantage__baseline="depth", **changes))
    for a, b in zip(rows(plain), rows(ours), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_by_path_a_sample_weighs_the_share_that_it_wrote():
    """3 of 8 and 6 of 8 tokens written; a bare sample weighs 1."""
    changes = {"rpo__advantage__weight": "path", "actor__loss_agg_mode": "seq-mean-token-mean"}
    maker = make(RPOExperienceMaker, tree_args(**changes))
    [one, *more] = experiences_of(maker, at_depths((5, 2, 0, 0), (1.0, 0.0, 1.0, 1.0), (3, 6, 4, 4)))
    shares = [share for e in (one, *more) for share in written_share(e).flatten().tolist()]
    assert sorted(shares) == [3 / 8, 6 / 8, 1.0, 1.0]


def test_a_weight_by_path_scales_every_advantage_of_a_sample():
    groups = at_depths((5, 2, 0, 0), (1.0, 0.0, 1.0, 1.0), (3, 6, 4, 4))
    mean = {"actor__loss_agg_mode": "seq-mean-token-mean"}
    plain = advantages_of(groups, tree_args(**mean))
    ours = advantages_of(groups, tree_args(rpo__advantage__weight="path", **mean))
    for before, after in zip(plain, ours, strict=True):
        torch.testing.assert_close(after.advantages, before.advantages * written_share(before))
