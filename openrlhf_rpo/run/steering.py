"""Options that a resumed run must not change (docs/resume.md). The cache stores their values.

An option may change only if listed here, so that no new option is overlooked.
"""

import hashlib
import json
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.config import changeable
from openrlhf_rpo.training.passes import shares_prefixes
from openrlhf_rpo.types import Question
from openrlhf_rpo.upstream import n_processes

# OpenRLHF's options that do not affect sampling or training, except through rounding on other hardware or kernels.
# Ours are marked with ``option(may_change=True)``.
MAY_CHANGE = (
    *("ckpt.*", "eval.*", "logger.*", "vllm.*", "ref.*", "use_ms", "local_rank", "critic.save_value_network"),
    # Locations: the content is compared instead, by fingerprint or below.
    *("actor.model_name_or_path", "data.prompt_*", "data.max_samples", "data.input_*", "data.label_key"),
    *("data.apply_chat_template", "data.dataloader_num_workers", "reward.remote_url"),
    # Hardware, memory, kernels.
    *("*.num_nodes", "*.num_gpus_per_node", "*.offload", "train.colocate_*", "train.full_determinism_enable"),
    *("ds.adam_offload", "ds.attn_implementation", "ds.deepcompile", "ds.enable_sleep", "ds.overlap_comm"),
    *("ds.packing_samples", "ds.use_liger_kernel", "ds.use_universal_ckpt", "ds.zpg", "ds.ring_attn_*"),
    *("actor.gradient_checkpointing_*", "rollout.micro_batch_size", "rollout.vllm_generate_batch_size"),
)

EPISODES = "train.num_episodes"  # stored with the others, but may change
BATCH = "rollout.batch_size"  # may never change: steps are counted in it
PROCESSES = "number of training processes"  # may never change: the checkpoint is split over them


def steering_options(args: SimpleNamespace, questions: Iterable[Question]) -> dict[str, str]:
    """name -> JSON value of every option that must not change, and hashes of question order, reward file and method file."""
    free = (*MAY_CHANGE, *(f"rpo.{name}" for name in changeable()))
    options = {name: value for name, value in _flat(args) if not any(fnmatch(name, pattern) for pattern in free)}
    options["order of the questions"] = _hash(json.dumps([q.question_id for q in questions]).encode())
    if not args.ds.use_universal_ckpt:
        trained = [args.actor, args.critic] if args.algo.advantage.estimator == "gae" else [args.actor]
        options[PROCESSES] = list(map(n_processes, trained))
    files = [Path(url) for url in args.reward.remote_url or [] if url.endswith(".py")]
    options["content of the reward file"] = _hash(b"".join(file.read_bytes() for file in files)) if files else None
    if ".py:" in args.rpo.method:  # the file may have moved
        file, _, name = args.rpo.method.rpartition(":")
        options["rpo.method"] = f"{Path(file).name}:{name}"
        options["content of the file of --rpo.method"] = _hash(Path(file).read_bytes())
    if args.train.batch_size < args.rollout.batch_size * args.rollout.n_samples_per_prompt:
        options["shared prefixes"] = shares_prefixes(args)  # affects which samples form an optimizer batch
    return {name: json.dumps(value, sort_keys=True, default=str) for name, value in sorted(options.items())}


def changed_options(stored: dict[str, str], now: dict[str, str]) -> list[str]:
    """One phrase per difference. Options known to one side only came or went with a package version and are skipped."""
    return [
        f"{name if ' ' in name else f'--{name}'} was {stored[name]}, now {now[name]}"
        for name in sorted(stored.keys() & now.keys() - {EPISODES, PROCESSES})
        if stored[name] != now[name]
    ]


def note_on_episodes(stored: dict[str, str], now: dict[str, str]) -> str | None:
    """How a changed ``--train.num_episodes`` affects the learning rate; None if it does not."""
    before, after, schedule = stored.get(EPISODES), now[EPISODES], json.loads(now["actor.lr_scheduler"])
    if before in (None, after) or schedule == "constant":
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
