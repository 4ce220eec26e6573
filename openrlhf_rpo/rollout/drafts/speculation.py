"""The engine's side of drafts: what vLLM is told, and how the paths of a group reach its workers. Light to import."""

from collections.abc import Sequence
from typing import Any

GROUP = "openrlhf_rpo_drafts"
"""In a request's ``extra_args``: the name of its group, and the number of prompt tokens before its path."""


def speculative_config(n_tokens: int, thrifty: bool) -> dict[str, object]:
    """The engine's argument for drafts of at most ``n_tokens`` tokens; ``thrifty``: only where they pay."""
    proposer = f"openrlhf_rpo.rollout.drafts.proposer.{'Thrifty' if thrifty else ''}Proposer"
    return {"method": "custom_class", "model": proposer, "num_speculative_tokens": n_tokens}


def allow_logit_bias(sampling_params: Any) -> None:
    """vLLM refuses ``logit_bias`` beside drafts, because its sampler would not apply it. Ours does (``sampler``)."""
    sampling_params._validate_spec_decode = lambda self, config: None


def remember(worker: Any, group: str, paths: Sequence[bytes]) -> None:
    """In a worker: index the paths of a group, newest first, each the bytes of its token ids (int32)."""
    runner = worker.model_runner
    runner.drafter.remember(runner, group, paths)


def forget(worker: Any, group: str) -> dict[str, float]:
    """In a worker: drop a group's paths. Returns "drafted" and "accepted" tokens, seconds "saved" since the last call."""
    return worker.model_runner.drafter.forget(group)
