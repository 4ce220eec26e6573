"""What to tell the user when a run has failed: the cause, what is saved, and how to resume."""

import errno
import re
from types import SimpleNamespace

from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UserError
from openrlhf_rpo.run.checkpoints import Checkpoints, step_of
from openrlhf_rpo.run.files import cache_name, cache_url

_ACTORS = {
    "RPOEngine": "a vLLM engine",
    "RPOPolicyActor": "a process of the policy (actor)",
    "RPOCriticActor": "a process of the critic",
    "RPOReferenceActor": "a process of the reference model",
    "RewardModelActor": "a process of the reward model",
    "RPOTrainer": "the trainer (the controller of the run)",
}
# Messages of the system, and of torch.save after a short write.
_NO_SPACE = ("No space left on device", "Disk quota exceeded", "file write failed", ". unexpected pos ")


def describe(error: BaseException, args: SimpleNamespace) -> str:
    """The last lines of a failed run. ``error`` is what Ray raised in the driver."""
    return f"{cause_of(error)}\n{what_is_safe(args)}"


def cause_of(error: BaseException) -> str:
    """One sentence: which process died, that the disk is full, or the original error's message."""
    chain = chain_of(error)
    said = "\n".join(str(e) for e in chain)
    first = chain[-1]
    if isinstance(first, UserError):  # its message says it all, even about a full disk
        return str(first)
    if getattr(first, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(words in said for words in _NO_SPACE):
        return "the disk is full, or a quota is used up, so that a file could not be written. Free space, then go on"
    if "EngineDeadError" in said or "EngineCore encountered" in said:
        return "a vLLM engine died: its core process ended. Its last words are above"
    died = re.search(r"class_name: _?(\w+)", said) if type(first).__name__.startswith("Actor") else None
    if died:
        what = _ACTORS.get(died[1], died[1])
        if "its node has died" in said:
            node = re.search(r"\tip: (\S+)", said)
            return f"{what} died with its node ({node[1] if node else 'it had not started yet'}): look at that machine"
        process = re.search(r"pid: (\d+)", said)
        why = re.search(r"OutOfMemory|killed due to memory", said)
        details = f" (process {process[1]})" if process else ""
        hint = " It was out of memory" if why else ""
        return f"{what} died{details}: killed, out of memory, or crashed.{hint}"
    return f"{type(first).__name__.removeprefix('RayTaskError').strip('()') or 'error'}: {first}"


def chain_of(error: BaseException) -> list[BaseException]:
    """The error and those it wraps: each process that passes on an error in Ray wraps it (``cause``)."""
    chain = [error]
    while isinstance(inner := getattr(chain[-1], "cause", None), BaseException) and inner not in chain:
        chain.append(inner)
    return chain


def what_is_safe(args: SimpleNamespace) -> str:
    """What is on the disk, and how to resume."""
    tag = Checkpoints.of_run(args).latest()
    start = step_of(tag) if tag else 0
    try:
        with PathCache.open_to_read(cache_url(args)) as cache:
            steps = max(cache.latest_step, 0)
    except CacheError as error:
        committed = f"the path cache could not be read just now ({error})"
    else:
        committed = f"{steps} committed steps in {cache_name(args)}"
    again = f"; what came after step {start} is run again" if tag else ": from step 0, there is no checkpoint yet"
    return (
        f"  safe: {committed}; checkpoint: {tag or 'none'} below {args.ckpt.path}\n"
        f"  to go on: the same command with --ckpt.load_enable{again}"
    )
