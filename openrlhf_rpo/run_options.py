"""Which options steer a run: they may not change when it is resumed. The cache keeps their values.

An option steers unless it is listed here, so that one that is new is never overlooked.
"""

import hashlib
import json
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.training.passes import shares_prefixes
from openrlhf_rpo.types import Question

# Nothing that is sampled or trained depends on these, but for rounding where the hardware or the kernels change.
MAY_CHANGE = (
    *("ckpt.*", "eval.*", "logger.*", "vllm.*", "ref.*", "use_ms", "local_rank", "critic.save_value_network"),
    *(
        "rpo.enable",
        "rpo.preset",
        "rpo.device",
        "rpo.allow_changed_options",
        "rpo.trust_remote_code",
    ),  # a preset's values are options
    *("rpo.cache.url", "rpo.cache.keep_versions", "rpo.log_samples*", "rpo.init.source", "rpo.shared_prefix*"),
    *("rpo.reward.timeout", "rpo.reward.workers", "rpo.reward.max_failure_share", "rpo.dynamic.max_batches"),
    # What is loaded from there is compared itself: by its fingerprint or below.
    *("actor.model_name_or_path", "data.prompt_*", "data.max_samples", "data.input_*", "data.label_key"),
    *("data.apply_chat_template", "data.dataloader_num_workers", "reward.remote_url"),
    # Where and how it is computed.
    *("*.num_nodes", "*.num_gpus_per_node", "*.offload", "train.colocate_*", "train.full_determinism_enable"),
    *("ds.adam_offload", "ds.attn_implementation", "ds.deepcompile", "ds.enable_sleep", "ds.overlap_comm"),
    *("ds.packing_samples", "ds.use_liger_kernel", "ds.use_universal_ckpt", "ds.zpg", "ds.ring_attn_*"),
    *("actor.gradient_checkpointing_*", "rollout.micro_batch_size", "rollout.vllm_generate_batch_size"),
)

EPISODES = "train.num_episodes"  # kept with the others, and may change all the same
PROCESSES = "number of training processes"  # may not, whatever the user says: the checkpoint is split over them


def steering_options(args: SimpleNamespace, questions: Iterable[Question]) -> dict[str, str]:
    """name -> value as JSON of every option that steers, with the order of the questions, and what the reward file and the
    files of the user's own rules say."""
    options = {name: value for name, value in _flat(args) if not any(fnmatch(name, free) for free in MAY_CHANGE)}
    options["order of the questions"] = _hash(json.dumps([q.question_id for q in questions]).encode())
    if not args.ds.use_universal_ckpt:
        trained = [args.actor, args.critic] if args.algo.advantage.estimator == "gae" else [args.actor]
        options[PROCESSES] = [model.num_nodes * model.num_gpus_per_node for model in trained]
    for url in args.reward.remote_url or []:
        if url.endswith(".py"):
            options["content of the reward file"] = _hash(Path(url).read_bytes())
    for name, value in list(options.items()):
        if isinstance(value, str) and ".py:" in value:  # a rule of the user's own, which may lie elsewhere now
            file, _, rule = value.rpartition(":")
            options[name] = f"{Path(file).name}:{rule}"
            options[f"content of the file of --{name}"] = _hash(Path(file).read_bytes())
    if args.train.batch_size < args.rollout.batch_size * args.rollout.n_samples_per_prompt:
        options["shared prefixes"] = shares_prefixes(args)  # they decide which samples make an optimizer's batch
    return {name: json.dumps(value, sort_keys=True, default=str) for name, value in sorted(options.items())}


def changed_options(stored: dict[str, str], now: dict[str, str]) -> list[str]:
    """One phrase a difference. An option that one side does not know came or went with a version of the packages."""
    return [
        f"{name if ' ' in name else f'--{name}'} was {stored[name]}, now {now[name]}"
        for name in sorted(stored.keys() & now.keys() - {EPISODES, PROCESSES})
        if stored[name] != now[name]
    ]


def note_on_episodes(stored: dict[str, str], now: dict[str, str]) -> str | None:
    """What other ``--train.num_episodes`` than before do to the learning rate; None when they do nothing."""
    before, after, schedule = stored.get(EPISODES), now[EPISODES], json.loads(now["actor.lr_scheduler"])
    if before in (None, after) or schedule.startswith("constant"):
        return None
    return (
        f"--{EPISODES} was {before}, now {after}: from here on the learning rate follows the {schedule} schedule of a run "
        "of that length, the steps so far followed that of the former one"
    )


def _flat(value: SimpleNamespace, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, inner in vars(value).items():
        if isinstance(inner, SimpleNamespace):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", inner


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
