"""The ranges of OpenRLHF's numbers, which its own parser does not check."""

import argparse

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.option import AT_LEAST_ONE, FINITE, NOT_NEGATIVE, POSITIVE, SHARE, Bounds

RANGES: dict[str, Bounds] = {
    "actor.adam.eps": POSITIVE,
    "actor.adam.lr": NOT_NEGATIVE,
    "actor.adam.weight_decay": NOT_NEGATIVE,
    "actor.entropy_coef": FINITE,
    "actor.eps_clip": NOT_NEGATIVE,
    "actor.lr_warmup_ratio": SHARE,
    "actor.max_norm": NOT_NEGATIVE,
    "actor.min_lr_ratio": SHARE,
    "actor.num_gpus_per_node": AT_LEAST_ONE,
    "actor.num_nodes": AT_LEAST_ONE,
    "algo.advantage.gamma": SHARE,
    "algo.advantage.lambd": SHARE,
    "algo.kl.init_coef": NOT_NEGATIVE,
    "ckpt.max_num": NOT_NEGATIVE,
    "critic.adam.eps": POSITIVE,
    "critic.adam.lr": NOT_NEGATIVE,
    "critic.adam.weight_decay": NOT_NEGATIVE,
    "critic.lr_warmup_ratio": SHARE,
    "critic.max_norm": NOT_NEGATIVE,
    "critic.min_lr_ratio": SHARE,
    "critic.num_gpus_per_node": AT_LEAST_ONE,
    "critic.num_nodes": AT_LEAST_ONE,
    "data.max_len": AT_LEAST_ONE,
    "data.max_samples": AT_LEAST_ONE,
    "ds.lora.dropout": SHARE,
    "ds.lora.rank": NOT_NEGATIVE,
    "ds.zero_stage": Bounds(0, 3),
    "eval.n_samples_per_prompt": AT_LEAST_ONE,
    "eval.temperature": NOT_NEGATIVE,
    "ref.num_gpus_per_node": AT_LEAST_ONE,
    "ref.num_nodes": AT_LEAST_ONE,
    "reward.num_gpus_per_node": AT_LEAST_ONE,
    "reward.num_nodes": AT_LEAST_ONE,
    "rollout.batch_size": AT_LEAST_ONE,
    "rollout.max_new_tokens": AT_LEAST_ONE,
    "rollout.max_tokens_per_gpu": AT_LEAST_ONE,
    "rollout.micro_batch_size": AT_LEAST_ONE,
    "rollout.n_samples_per_prompt": AT_LEAST_ONE,
    "rollout.temperature": POSITIVE,  # log-probs are divided by it
    "rollout.top_p": Bounds(0, 1, (True, False)),
    "train.batch_size": AT_LEAST_ONE,
    "train.ema_beta": SHARE,
    "train.max_epochs": AT_LEAST_ONE,
    "train.max_tokens_per_gpu": AT_LEAST_ONE,
    "train.micro_batch_size": AT_LEAST_ONE,
    "train.num_episodes": AT_LEAST_ONE,
    "train.seed": FINITE,
    "vllm.gpu_memory_utilization": Bounds(0, 1, (True, False)),
    "vllm.num_engines": NOT_NEGATIVE,
    "vllm.tensor_parallel_size": AT_LEAST_ONE,
}


def check_ranges(flat: argparse.Namespace) -> None:
    """Raises UsageError for a number outside its range; options that are not set are left alone."""
    for name, bounds in RANGES.items():
        value = getattr(flat, name)
        if value is not None and not bounds.admit(value):
            raise UsageError(f"--{name} {value}: {bounds}")
