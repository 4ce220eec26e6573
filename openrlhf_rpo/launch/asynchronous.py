"""The options of asynchronous training (``--train.async_enable``)."""

from argparse import Namespace
from types import SimpleNamespace

from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import UsageError

_OF = "algo.advantage"
CORRECTION: dict[str, object] = {
    f"{_OF}.is_correction_level": "token",
    f"{_OF}.is_correction_mode": "clip",
    f"{_OF}.is_correction_threshold": [0.0, 2.0],
}
"""Set unless given by hand, whatever method and presets say. A batch is from an earlier policy q than the p that trains on
it, so each token's loss is weighted by min(p / q, 2): truncated importance sampling (as upstream, models/loss.py).
"""


def correct(flat: Namespace, given: set[str]) -> None:
    """Turn the correction on where batches are made ahead."""
    if getattr(flat, "rpo.enable") and getattr(flat, "train.async_enable") and getattr(flat, "train.async_queue_size"):
        other = getattr(flat, f"{_OF}.is_correction_level") == "seq" or f"{_OF}.is_correction_gating" in given
        for name in CORRECTION.keys() - given:
            if not other or name.endswith("level"):  # a bound on token weights fits no other gate
                setattr(flat, name, CORRECTION[name])


def check(args: SimpleNamespace, rpo: RPOConfig) -> None:
    """Raises UsageError for what asynchronous training lacks or cannot be combined with."""
    size, age = args.train.async_queue_size, rpo.async_.max_age
    if not args.train.async_enable:
        return
    if not rpo.enable:
        if size == 0:
            raise UsageError("--train.async_queue_size 0 with --rpo.enable false: OpenRLHF needs at least 1")
        return
    if size > age:
        raise UsageError(
            f"--rpo.async.max_age {age} is less than --train.async_queue_size {size}: a batch waits for up to {size} steps, "
            "so all answers would be too old to train on"
        )
    if size and rpo.tail < 1:
        raise UsageError(
            f"--rpo.tail {rpo.tail:g} is for steps that wait for their rollout: with --train.async_enable leave it out; "
            "--train.partial_rollout_enable keeps training from waiting for long answers"
        )
