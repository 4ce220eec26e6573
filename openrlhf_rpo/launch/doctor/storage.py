"""What a run stores, and on which disk: checkpoints, models, the path cache."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

from openrlhf_rpo.algo.methods import RPO, Paper
from openrlhf_rpo.cache.session import place
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.launch.doctor import memory
from openrlhf_rpo.launch.doctor.findings import listed
from openrlhf_rpo.run.checkpoints import keeps_best
from openrlhf_rpo.run.files import cache_url, existing

BYTES_PER_TOKEN = 4.5
"""Of a stored path, with its log-probs; 4.3 were measured (docs/cache.md, Scale)."""


class Stored(NamedTuple):
    """The folder of something that a run stores, the most bytes that it takes, and their sum in words."""

    folder: str
    n_bytes: int
    words: str


def stored(
    shape: memory.ModelShape, critic: int, args: SimpleNamespace, config: RPOConfig, questions: int, steps: int
) -> list[Stored]:
    """Upper bounds: every path at its longest, and all paths in every checkpoint. A cache on a server is not counted."""
    one = memory.checkpoint_bytes(shape, critic, args)
    kept, which = checkpoints_at_once(args)
    exports = saves(args, steps) if args.ckpt.save_hf else 0
    model = (shape.adapter or shape.parameters) * memory.weight_bytes(args)  # OpenRLHF saves an adapter alone
    final = model + (critic * memory.weight_bytes(args) if args.critic.save_value_network else 0)
    per_visit = 1 if type(config.method) in (RPO, Paper) else args.rollout.n_samples_per_prompt
    rows = questions + steps * args.rollout.batch_size * per_visit
    cache = int(rows * args.data.max_len * BYTES_PER_TOKEN)
    checkpoints = (
        f"{kept} checkpoints ({which}) x {memory.gib(one)} with a copy of the path cache, {memory.gib(cache)}, in each"
    )
    if exports:
        checkpoints += f", {exports:,} models of --ckpt.save_hf, which nothing removes, x {memory.gib(model)}"
    found = [
        Stored(args.ckpt.path, kept * (one + cache) + exports * model, checkpoints),
        Stored(args.ckpt.output_dir, final, f"the final model {memory.gib(final)}"),
    ]
    if file := place(cache_url(args))[1]:
        paths = f"{rows:,} paths x {args.data.max_len:,} tokens x {BYTES_PER_TOKEN:g} bytes"
        found.append(Stored(str(file.parent), cache, f"the path cache itself ({paths})"))
    return found


def by_disk(parts: Sequence[Stored]) -> list[Stored]:
    """One for each file system, with the folder of the first of its parts."""
    disks: dict[int, list[Stored]] = {}
    for part in parts:
        disks.setdefault(_disk_of(part.folder), []).append(part)
    needed = [(own, sum(part.n_bytes for part in own)) for own in disks.values()]
    return [
        Stored(own[0].folder, n, f"at most {memory.gib(n)} are needed: {', '.join(part.words for part in own)}")
        for own, n in needed
    ]


def _disk_of(folder: str) -> int:
    return existing(folder).stat().st_dev


def checkpoints_at_once(args: SimpleNamespace) -> tuple[int, str]:
    """The most checkpoints on the disk at a time, and which: an old one goes only after the new one is complete."""
    regular = max(1, args.ckpt.max_num) if args.ckpt.save_steps > 0 else 0
    best = int(keeps_best(args))
    if args.ckpt.disable_ds or not regular + best:
        return 0, "none is written"
    which = ["--ckpt.max_num"] * bool(regular) + ["the best one"] * best + ["the one that is being written"]
    return regular + best + 1, listed(which)


def saves(args: SimpleNamespace, steps: int) -> int:
    """The most checkpoints in the whole run: any evaluation, including the final one, may be the best so far."""
    regular = steps // args.ckpt.save_steps if args.ckpt.save_steps > 0 else 0
    return regular + (math.ceil(steps / args.eval.steps) if keeps_best(args) else 0)
