"""The sub-commands that change a cache, under its writer's lock: rollback, prune, vacuum.

What they remove is gone; a copy lies beside every checkpoint.
"""

from argparse import Namespace

from openrlhf_rpo.cli.cache.look import cache_size
from openrlhf_rpo.cli.cache.output import Output, confirm
from openrlhf_rpo.cli.cache.places import at_step, cache_place, open_to_write


def rollback(args: Namespace, out: Output) -> int:
    """Back to a step: every newer row is removed. Exit status 1 when the person at the terminal says no."""
    with open_to_write(args.cache) as cache:
        step = at_step(cache, args.step)
        newer = max(cache.latest_step, 0) - step
        question = f"Remove the {newer:,} steps after step {step}? Checkpoints of those steps need their own copy to resume."
        if newer and not confirm(question, args.yes):
            return _unchanged(out)
        removed = cache.rollback(step)
    out.emit({"step": step, "removed_steps": removed})
    out.line(f"The cache is as it was at step {step}; {removed:,} steps were removed.")
    return 0


def prune(args: Namespace, out: Output) -> int:
    """Remove the paths that no step from ``step`` on reads."""
    with open_to_write(args.cache) as cache:
        step = at_step(cache, args.step)
        question = (
            f"Remove the paths that were superseded before step {step}? The cache can then not go back to an earlier "
            "step: checkpoints before it need their own copy to resume."
        )
        if not confirm(question, args.yes):
            return _unchanged(out)
        removed = cache.prune(step)
    out.emit({"readable_from_step": step, "removed_paths": removed})
    out.line(f"{removed:,} paths were removed; the cache can be read from step {step} on. `vacuum` gives the space back.")
    return 0


def vacuum(args: Namespace, out: Output) -> int:
    """Give the space of removed rows back."""
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
