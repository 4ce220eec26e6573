"""Experiences of small groups as the forward passes leave them, and makers of both kinds."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from openrlhf_rpo.algo.methods import RPO
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.launch import options
from openrlhf_rpo.rollout.experience import to_experiences
from openrlhf_rpo.training.experience_maker import RPOExperienceMaker
from openrlhf_rpo.types import Group, Prefix, Question, Sample

PROMPT = (10, 11, 12)
QUESTION = Question("q", "1+1?", "2", prompt_ids=PROMPT)
PREFIX = Prefix((20, 21, 22, 23), (-0.1, -0.2, -0.3, -0.4), 2)
ESTIMATORS = ["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"]


def training_args(estimator="group_norm", **changes):
    """Two groups of two samples, micro-batches of three, so that a group is torn apart."""
    words = {
        "actor.model_name_or_path": "model",
        "actor.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "rpo.reward.functions": "math",
        "algo.advantage.estimator": estimator,
        "rollout.batch_size": 2,
        "rollout.n_samples_per_prompt": 2,
        "rollout.micro_batch_size": 3,
        "train.batch_size": 4,
        "vllm.num_engines": 1,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return options.parse(
        [w for name, value in words.items() for w in ((f"--{name}",) if value is True else (f"--{name}", str(value)))]
    )


def make(cls, args, method=None):
    models = (
        None,
        None,
        None,
        None,
        SimpleNamespace(value=0.1),
        SimpleNamespace(args=args),
        SimpleNamespace(pad_token_id=0),
    )
    if cls is not RPOExperienceMaker:
        return cls(*models)
    return cls(replace(RPOConfig.from_namespace(args.rpo), method=method or RPO()), *models)


def sample(prefix, length, score, finish="stop"):
    return Sample(prefix, tuple(range(30, 30 + length)), (-0.5,) * length, finish, score, score)


def two_groups(prefix=PREFIX, lengths=(3, 2, 4, 1), scores=(1.0, 0.0, 1.0, 1.0)):
    members = [sample(prefix, n, score) for n, score in zip(lengths, scores, strict=True)]
    return [Group(QUESTION, tuple(members[:2])), Group(QUESTION, tuple(members[2:]))]


def experiences_of(maker, groups):
    """As they are after the forward passes: log-probs, values and KL are arbitrary numbers, the same each time."""
    generator = torch.Generator().manual_seed(0)
    maker.groups = groups
    method = maker.config.method if hasattr(maker, "config") else RPO()
    samples = [e for group in groups for e in to_experiences(group, method)]
    batches = maker.split_rollout_samples(samples)
    for batch in batches:
        shape = batch.action_mask.shape
        batch.action_log_probs = -torch.rand(shape, generator=generator)
        batch.values = torch.rand(shape, generator=generator) if maker.advantage_estimator == "gae" else None
        batch.kl = 0.01 * torch.rand(shape, generator=generator)
    return batches


def advantages_of(groups, args, method=None, cls=RPOExperienceMaker):
    maker = make(cls, args, method)
    return maker.compute_advantages_and_returns(experiences_of(maker, groups))


def rows(experiences, field="advantages"):
    return [row for e in experiences for row in getattr(e, field).unbind()]


def without_kl(experiences):
    for e in experiences:
        e.kl = torch.zeros_like(e.kl)
    return experiences
