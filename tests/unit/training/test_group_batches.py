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
    """A group of model actors in this process; counts the micro-batches that it was asked to run."""

    duplicate_actors = 1

    def __init__(self):
        self.asked = 0

    def async_run_method_batch(self, method_name, sequences, action_mask, **others):
        self.asked += len(sequences)
        return [[torch.full(mask.shape, -1.0) for mask in action_mask]]


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


def test_no_pass_is_made_for_old_log_probs_that_the_training_step_has():
    made, actor = maker()
    experiences = made.make(groups(), samples())
    assert actor.asked == 0
    for experience in experiences:
        assert (
            experience.action_log_probs.isnan().all() and experience.action_log_probs.shape == experience.action_mask.shape
        )
        assert experience.advantages.isfinite().all() and "rollout_log_prob_gap" not in experience.info


def test_the_pass_is_made_where_the_policy_changes_within_a_step():
    made, actor = maker(train__batch_size=6)
    experiences = made.make(groups(), samples())
    assert actor.asked == 4
    assert all((e.action_log_probs == -1).all() and "rollout_log_prob_gap" in e.info for e in experiences)
