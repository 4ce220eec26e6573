"""Checks that the cache and checkpoints on the disk belong to this run, and that it can resume from them."""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError
from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.cache.session import SQLITE
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.exchange.places import check_rows
from openrlhf_rpo.launch.former import removed, translated
from openrlhf_rpo.run.checkpoints import Checkpoints, keeps_best, step_of
from openrlhf_rpo.run.files import cache_copy_path, cache_name, cache_url, fingerprints
from openrlhf_rpo.run.steering import BATCH, PROCESSES, changed_options, note_on_episodes, steering_options
from openrlhf_rpo.types import Question


def check_cache(args: SimpleNamespace, questions: Sequence[Question], tokenizer: Any) -> None:
    """Restore a lost cache from the checkpoint; check that the cache is this run's, intact, and empty unless resuming.

    Raises UsageError or CacheError.
    """
    url, where = cache_url(args), cache_name(args)
    checkpoints = Checkpoints.of_run(args)
    tag = checkpoints.latest() if args.ckpt.load_enable else None
    copy = copy_beside(args, tag)
    if args.ckpt.load_enable and tag is None:
        print(f"No checkpoint below --ckpt.path {args.ckpt.path}: starting from step 0", flush=True)
    if copy and PathCache.is_missing(url):
        print(f"The cache {where} is missing; restoring the copy beside the checkpoint, {copy}", flush=True)
        PathCache.restore(copy, url)
    elif PathCache.is_missing(url):  # refused before an empty one is created
        check_steps(args, 0, tag)
    try:
        with PathCache.open(url, fingerprints(args, questions, tokenizer)) as cache:  # refused while a run is alive
            if args.ckpt.load_enable:
                tag = checkpoints.settle(critic=args.algo.advantage.estimator == "gae")  # newer if a run ended since
                copy = copy_beside(args, tag)
            check_steps(args, cache.latest_step, tag)
            refuse_complete(args, cache, tag)
            if tag and copy:
                check_history(cache, where, tag, copy)
            check_options(args, translated(cache.options), steering_options(args, questions), tag)
            if args.ckpt.load_enable:
                check_rows(cache)
    except CacheCorrupt as error:
        if copy is None or copy in str(error):
            raise
        raise CacheCorrupt(f"{error} That copy is {copy}: it is restored once the damaged file is removed.") from error


def copy_beside(args: SimpleNamespace, tag: str | None) -> str | None:
    """The copy of the cache in checkpoint ``tag``; None where there is none."""
    if tag is None:
        return None
    copy = cache_copy_path(args, tag)
    return copy if os.path.exists(copy) else None


def check_steps(args: SimpleNamespace, steps: int, tag: str | None) -> None:
    """Raises when the cache has fewer steps than the checkpoint ``tag`` that a resumed run loads.

    A run that does not resume may have neither steps nor checkpoints, which its own would replace.
    """
    where = cache_name(args)
    if steps > 0 and not args.ckpt.load_enable:
        raise UsageError(
            f"the cache {where} already holds {steps} steps of a run: add --ckpt.load_enable to resume it, "
            f"or use another --ckpt.path"
        )
    if not args.ckpt.load_enable and (earlier := Checkpoints.of_run(args).latest()):
        raise UsageError(
            f"--ckpt.path {args.ckpt.path} holds the checkpoints of a run, up to {earlier}, and this run's would replace "
            "them: add --ckpt.load_enable to resume it, or use another --ckpt.path"
        )
    every = [n for n in (args.ckpt.save_steps, keeps_best(args) and args.eval.steps) if n > 0]
    if tag is None and every and 2 * min(every) < steps:  # the first is complete before the second is written
        raise UsageError(
            f"the cache {where} holds {steps} steps, and below --ckpt.path {args.ckpt.path} there is no checkpoint to go on "
            "from: is it another folder, or not mounted? To begin again at step 0, remove the cache or name another"
        )
    if tag is not None and steps < step_of(tag):
        raise CacheError(
            f"Path cache {where} ends at step {max(steps, 0)}, before the checkpoint {tag} that would be loaded. "
            "Remove the cache file: the copy beside the checkpoint then takes its place"
        )


def refuse_complete(args: SimpleNamespace, cache: CacheHistory, tag: str | None) -> None:
    """Raises UsageError for a run that has saved its model and kept no checkpoint: resuming it would begin it again."""
    last, at = f"{args.ckpt.output_dir}/tokenizer_config.json", cache.latest_at  # written behind the weights
    if tag is not None or not args.ckpt.load_enable or at is None or not os.path.exists(last):
        return
    if os.path.getmtime(last) >= at.timestamp():
        raise UsageError(
            f"the run in {cache_name(args)} is complete, with its model in --ckpt.output_dir {args.ckpt.output_dir}, and it "
            "kept no checkpoint to go on from: it would begin again at step 0. To repeat it, remove the cache, or use "
            "another --ckpt.path (or --ckpt.output_dir, if that model is another run's)"
        )


def check_history(cache: CacheHistory, where: str, tag: str, copy: str) -> None:
    """Raises CacheError if the step of checkpoint ``tag`` was pruned, or is not the one the checkpoint was written after."""
    step = step_of(tag)
    if step < cache.kept_from and step not in cache.kept_steps:
        raise CacheError(
            f"Path cache {where}: the paths of step {step}, of the checkpoint {tag}, were pruned. Remove the cache: the "
            f"copy beside the checkpoint, {copy}, then takes its place"
        )
    try:
        with PathCache.open_to_read(f"{SQLITE}{copy}") as copied:
            written = _measured(copied, step)
    except CacheError as error:
        print(f"Note: whether the cache {where} belongs to the checkpoint {tag} is not known: {error}", flush=True)
        return
    if _measured(cache, step) != written:
        raise CacheError(
            f"Path cache {where}: its step {step} is not the one that the checkpoint {tag} was written after: the run went "
            f"on from another checkpoint since. Remove the cache: the copy beside this one, {copy}, then takes its place"
        )


def _measured(cache: CacheHistory, step: int) -> str:
    """The record of a step as text, seconds included, so that no other run of it has the same; NaN equals NaN."""
    return repr([(one.step, one.consumed, sorted(one.metrics.items())) for one in cache.records(step - 1)[:1]])


def check_options(args: SimpleNamespace, stored: dict[str, str], now: dict[str, str], tag: str | None) -> None:
    """Raises UsageError when an option that steers the run changed without --rpo.allow_changed_options.

    The number of processes and the batch size may not change even then, if checkpoint ``tag`` will be loaded
    (docs/resume.md).
    """
    if not stored:  # nothing is sampled yet, or the cache is from a version that stored no options
        return
    before, after = stored.get(PROCESSES), now.get(PROCESSES)
    if tag is not None and None not in (before, after) and before != after:
        raise UsageError(
            f"the {PROCESSES} was {before}, now {after}: DeepSpeed loads an optimizer's states only into as many processes "
            "as wrote them. Give the former --actor.num_nodes x --actor.num_gpus_per_node (and --critic...), or convert "
            "the checkpoint with DeepSpeed's ds_to_universal and add --ds.use_universal_ckpt"
        )
    batch = stored.get(BATCH, now[BATCH])
    if tag is not None and batch != now[BATCH]:
        raise UsageError(
            f"--{BATCH} was {batch}, now {now[BATCH]}: the number of steps and the learning rate's schedule follow from it. "
            "Give the former one"
        )
    changes = changed_options(stored, now) + removed(stored)
    if changes and not args.rpo.allow_changed_options:
        raise UsageError(
            f"the run in {cache_name(args)} was started with other options, and would not go on as it was: "
            + "; ".join(changes)
            + ". Give the former values, use another --ckpt.path, or continue with the new ones: "
            "--rpo.allow_changed_options true"
        )
    for change in (*changes, note_on_episodes(stored, now)):
        if change:
            print(f"Note: {change}", flush=True)
