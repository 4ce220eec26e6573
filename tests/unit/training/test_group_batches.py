"""What the experience maker sends to the models: micro-batches of whole groups, and no pass that changes nothing."""

from types import SimpleNamespace

import pytest
import ray
import torch

from openrlhf_rpo.algo.methods import RPO
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.launch import options
from openrlhf_rpo.rollout.experience import to_experiences
from openrlhf_rpo.training.experience_maker import RPOExperienceMaker
from openrlhf_rpo.types import Group, Prefix, Question, Sample

PREFIX = Prefix((20, 21, 22, 23), (-0.1,) * 4, 2)
PROMPT = (10, 11)


class Models:
    """A group of model actors in this process; keeps how many rows each micro-batch had that it was asked to run."""

    duplicate_actors = 1

    def __init__(self):
        self.asked = []

    def async_run_method_batch(self, method_name, sequences, action_mask, attention_mask, rows=None, **others):
        rows = [range(len(batch)) for batch in sequences] if rows is None else rows
        self.asked += map(len, rows)
        return [[torch.full((len(own), mask.shape[1]), -1.0) for own, mask in zip(rows, action_mask, strict=True)]]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    """References are the values themselves."""
    monkeypatch.setattr(ray, "put", lambda value: value)
    monkeypatch.setattr(ray, "get", lambda value: value)


def maker(**changes):
    values = {
        "actor.model_name_or_path": "model",
        "actor.num_gpus_per_node": 2,
        "rpo.reward.functions": "math",
        "rpo.shared_prefix": "auto",
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": 0,
        "rollout.batch_size": 4,
        "rollout.n_samples_per_prompt": 3,
        "rollout.micro_batch_size": 3,
        "train.batch_size": 12,
        "vllm.num_engines": 1,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    args = options.parse([w for name, value in values.items() for w in (f"--{name}", str(value))])
    actor = Models()
    strategy, tokenizer = SimpleNamespace(args=args), SimpleNamespace(pad_token_id=0)
    config = RPOConfig.from_namespace(args.rpo)
    return RPOExperienceMaker(config, actor, None, None, None, SimpleNamespace(value=0.0), strategy, tokenizer), actor


def groups():
    made = []
    for number, length in enumerate([9, 2, 3, 8]):
        members = tuple(
            Sample(PREFIX, (100 * number + 30 + i,) * length, (-0.5,) * length, "stop", float(i == 0), float(i == 0))
            for i in range(3)
        )
        made.append(Group(Question(f"q{number}", "1+1?", "2", prompt_ids=PROMPT), members))
    return made


def samples():
    return [e for group in groups() for e in to_experiences(group, RPO())]


def test_micro_batches_are_whole_groups_and_ranks_get_equal_cost():
    """Costs 6 + 3 x (9, 2, 3, 8): the first and the last rank of two get (9, 2) and (3, 8), or (9, 3) and (2, 8)."""
    made, _ = maker()
    batches = made.split_rollout_samples(samples())
    kept = [{i // 3 for i in batch.index} for batch in batches]
    assert all(len(members) == 1 for members in kept) and len(kept) == 4
    first_rank = kept[0] | kept[1]
    assert len(first_rank & {0, 3}) == 1  # the two long groups are on different ranks


def test_no_pass_is_made_before_the_advantages_are_known():
    made, actor = maker()
    experiences = made.make(groups(), samples())
    assert actor.asked == []
    for experience in experiences:
        assert (
            experience.action_log_probs.isnan().all() and experience.action_log_probs.shape == experience.action_mask.shape
        )
        assert experience.advantages.isfinite().all()


def test_a_kl_penalty_in_the_reward_reads_the_log_probs_of_all_rows_first():
    made, actor = maker(algo__kl__init_coef=0.01, algo__advantage__estimator="reinforce", ref__num_gpus_per_node=2)
    experiences = made.make(groups(), samples())
    assert actor.asked == [3] * 4
    assert made.fill_in_old_log_probs(experiences) == pytest.approx(0.5)  # the engine's are -0.5
    assert actor.asked == [3] * 4 and all((e.action_log_probs == -1).all() for e in experiences)


def test_old_log_probs_are_computed_for_the_rows_that_are_trained():
    made, actor = maker(train__batch_size=6)
    experiences = made.make(groups(), samples())
    for experience, silent in zip(experiences, ([], [1], [0, 2], [0, 1, 2]), strict=True):
        experience.advantages[silent] = 0
    assert made.fill_in_old_log_probs(experiences) == pytest.approx(0.5)  # the engine's are -0.5
    assert actor.asked == [3, 2, 1, 0]
    for experience, left_out in zip(experiences, ([], [1], [0, 2], [0, 1, 2]), strict=True):
        kept = [i for i in range(3) if i not in left_out]
        assert (experience.action_log_probs[kept] == -1).all()
        assert experience.action_log_probs[left_out].isnan().all()
    for experience in experiences:
        experience.advantages[:] = 0
    assert made.fill_in_old_log_probs(experiences) == 0  # of none


def test_a_kl_loss_trains_all_rows_and_has_the_log_probs_of_all_beside_the_references():
    made, actor = maker(train__batch_size=6, algo__kl__init_coef=0.01, ref__num_gpus_per_node=2)
    made.args.algo.kl.use_loss = True
    experiences = made.make(groups(), samples())
    assert actor.asked == [3] * 4
    for experience in experiences:
        experience.advantages[:] = 0
    assert made.fill_in_old_log_probs(experiences) == pytest.approx(0.5) and len(actor.asked) == 4
