"""The sub-commands that change a cache: rollback, prune, vacuum. They take its writer's lock.

Removals cannot be undone, but every checkpoint has a copy of the cache.
"""

from argparse import Namespace

from openrlhf_rpo.cli.cache.look import cache_size
from openrlhf_rpo.console import Output, confirm
from openrlhf_rpo.exchange.places import at_step, cache_place, open_to_write


def rollback(args: Namespace, out: Output) -> int:
    """Go back to a step by removing every newer row. Exit status 1 when the user declines."""
    with open_to_write(args.cache) as cache:
        step = at_step(cache, args.step)
        latest = max(cache.latest_step, 0)
        question = (
            f"Remove what came after step {step}, up to step {latest}? "
            "Checkpoints of those steps need their own copy to resume."
        )
        if latest > step and not confirm(question, args.yes):
            return _unchanged(out)
        removed = cache.rollback(step)
    out.emit({"step": step, "removed_steps": removed})
    out.line(f"The cache is back at step {step}; steps removed: {removed:,}.")
    return 0


def prune(args: Namespace, out: Output) -> int:
    """Remove the paths that neither ``step`` nor a later step uses. Exit status 1 when the user declines."""
    with open_to_write(args.cache) as cache:
        step = at_step(cache, args.step)
        question = (
            f"Remove the paths that step {step} and later steps do not use? The cache can then not go back to an earlier "
            "step: checkpoints before it need their own copy to resume."
        )
        if not confirm(question, args.yes):
            return _unchanged(out)
        removed, oldest = cache.prune(step), cache.kept_from
    out.emit({"readable_from_step": oldest, "removed_paths": removed})
    out.line(f"Paths removed: {removed:,}; the oldest step is now {oldest}. `vacuum` frees the space on disk.")
    return 0


def vacuum(args: Namespace, out: Output) -> int:
    """Free the space of removed rows."""
    url = cache_place(args.cache)
    with open_to_write(args.cache) as cache:
        before = cache_size(url)
        cache.vacuum()
    after = cache_size(url)
    out.emit({"bytes_before": before, "bytes_after": after})
    out.line("done" if before is None or after is None else f"{before:,} bytes before, {after:,} now")
    return 0


def _unchanged(out: Output) -> int:
    out.note("Nothing was changed.")
    return 1
