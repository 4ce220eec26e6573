"""The ranges of OpenRLHF's numbers, which its own parser does not check."""

import argparse
from typing import Any

from openrlhf_rpo.algo.methods import METHODS, option_names
from openrlhf_rpo.config import GROUPS, RPOConfig, top_options
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.option import AT_LEAST_ONE, FINITE, NOT_NEGATIVE, POSITIVE, SHARE, SHARE_BELOW_ONE, Bounds, options_of

NUMBER_OF_STEPS = Bounds(-1)  # -1: never; ``launch.options`` refuses 0

RANGES: dict[str, Bounds] = {
    "actor.adam.betas": SHARE_BELOW_ONE,
    "actor.adam.eps": POSITIVE,
    "actor.adam.lr": NOT_NEGATIVE,
    "actor.adam.weight_decay": NOT_NEGATIVE,
    "actor.aux_loss_coef": NOT_NEGATIVE,
    "actor.dual_clip": Bounds(1, open=(True, False)),
    "actor.entropy_coef": FINITE,
    "actor.eps_clip": NOT_NEGATIVE,
    "actor.eps_clip_low_high": NOT_NEGATIVE,
    "actor.lr_warmup_ratio": SHARE,
    "actor.max_norm": NOT_NEGATIVE,
    "actor.min_lr_ratio": SHARE,
    "actor.muon.lr": NOT_NEGATIVE,
    "actor.muon.momentum": SHARE_BELOW_ONE,
    "actor.muon.ns_steps": AT_LEAST_ONE,
    "actor.num_gpus_per_node": AT_LEAST_ONE,
    "actor.num_nodes": AT_LEAST_ONE,
    "algo.advantage.gamma": SHARE,
    "algo.advantage.is_correction_threshold": NOT_NEGATIVE,
    "algo.advantage.lambd": SHARE,
    "algo.dynamic_filtering_range": FINITE,
    "algo.kl.horizon": AT_LEAST_ONE,
    "algo.kl.init_coef": NOT_NEGATIVE,
    "algo.kl.target": NOT_NEGATIVE,
    "ckpt.max_mem": Bounds(0, open=(True, False), infinite=True),  # the default is inf
    "ckpt.max_num": NOT_NEGATIVE,
    "ckpt.save_steps": NUMBER_OF_STEPS,
    "critic.adam.betas": SHARE_BELOW_ONE,
    "critic.adam.eps": POSITIVE,
    "critic.adam.lr": NOT_NEGATIVE,
    "critic.adam.weight_decay": NOT_NEGATIVE,
    "critic.freezing_steps": Bounds(-1),
    "critic.lr_warmup_ratio": SHARE,
    "critic.max_norm": NOT_NEGATIVE,
    "critic.min_lr_ratio": SHARE,
    "critic.muon.lr": NOT_NEGATIVE,
    "critic.muon.momentum": SHARE_BELOW_ONE,
    "critic.muon.ns_steps": AT_LEAST_ONE,
    "critic.num_gpus_per_node": AT_LEAST_ONE,
    "critic.num_nodes": AT_LEAST_ONE,
    "critic.value_clip": NOT_NEGATIVE,
    "data.dataloader_num_workers": NOT_NEGATIVE,
    "data.max_images_per_prompt": NOT_NEGATIVE,
    "data.max_len": AT_LEAST_ONE,
    "data.max_samples": AT_LEAST_ONE,
    "ds.lora.alpha": AT_LEAST_ONE,
    "ds.lora.dropout": SHARE_BELOW_ONE,
    "ds.lora.rank": NOT_NEGATIVE,
    "ds.ring_attn_head_stride": AT_LEAST_ONE,
    "ds.ring_attn_size": AT_LEAST_ONE,
    "ds.tensor_parallel_size": AT_LEAST_ONE,
    "ds.zero_stage": Bounds(0, 3),
    "ds.zpg": AT_LEAST_ONE,
    "eval.n_samples_per_prompt": AT_LEAST_ONE,
    "eval.steps": NUMBER_OF_STEPS,
    "eval.temperature": Bounds(0, 2),  # as vLLM
    "local_rank": Bounds(-1),
    "logger.logging_steps": AT_LEAST_ONE,
    "ref.num_gpus_per_node": AT_LEAST_ONE,
    "ref.num_nodes": AT_LEAST_ONE,
    "reward.clip_range": FINITE,
    "reward.num_gpus_per_node": AT_LEAST_ONE,
    "reward.num_nodes": AT_LEAST_ONE,
    "reward.overlong_buffer_len": POSITIVE,
    "reward.overlong_penalty_factor": NOT_NEGATIVE,
    "reward.stop_properly_penalty_coef": Bounds(high=1),
    "rollout.batch_size": AT_LEAST_ONE,
    "rollout.max_new_tokens": AT_LEAST_ONE,
    "rollout.max_tokens_per_gpu": AT_LEAST_ONE,
    "rollout.micro_batch_size": AT_LEAST_ONE,
    "rollout.n_samples_per_prompt": AT_LEAST_ONE,
    "rollout.temperature": Bounds(0.01, 2),  # vLLM samples at 0.01 below it, and raises above 2
    "rollout.top_p": Bounds(0, 1, (True, False)),
    "rollout.vllm_generate_batch_size": AT_LEAST_ONE,
    "train.async_queue_size": NOT_NEGATIVE,
    "train.batch_size": AT_LEAST_ONE,
    "train.ema_beta": SHARE_BELOW_ONE,
    "train.max_epochs": AT_LEAST_ONE,
    "train.max_tokens_per_gpu": AT_LEAST_ONE,
    "train.micro_batch_size": AT_LEAST_ONE,
    "train.num_episodes": AT_LEAST_ONE,
    "train.seed": Bounds(0, 2**32 - 1),  # numpy's seeds
    "vllm.gpu_memory_utilization": Bounds(0, 1, (True, False)),
    "vllm.num_engines": NOT_NEGATIVE,
    "vllm.tensor_parallel_size": AT_LEAST_ONE,
}


def check_ranges(flat: argparse.Namespace) -> None:
    """Raises UsageError for a number outside its range; options that are not set are left alone."""
    for name, bounds in RANGES.items():
        value = getattr(flat, name)
        numbers = value if isinstance(value, list | tuple) else [value]
        if any(number is not None and not bounds.admit(number) for number in numbers):
            raise UsageError(f"--{name} {' '.join(map(str, numbers))}: {bounds}")


def all_bounds() -> dict[str, Bounds]:
    """Option -> bounds, for every number of the training command: OpenRLHF's, ours, and those of the shipped methods."""
    ours: dict[str, Any] = {top_options()[field]: f for field, f in options_of(RPOConfig).items()}
    for group, kind in GROUPS.items():
        ours |= {f"{group}.{name}": f for name, f in options_of(kind).items()}
    for method in METHODS.values():
        fields = options_of(method)
        ours |= {name: fields[field] for field, name in option_names(method).items()}
    return RANGES | {f"rpo.{name}": f.metadata["bounds"] for name, f in ours.items() if f.metadata["bounds"]}
