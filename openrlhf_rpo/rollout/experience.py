"""Samples as OpenRLHF's ``Experience``, the data type that training takes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from openrlhf_rpo.algo.loss_mask import loss_mask
from openrlhf_rpo.algo.methods import Method, Off
from openrlhf_rpo.types import Group, Sample
from openrlhf_rpo.upstream import Experience, compute_eval_metrics

OFF = Off()


def to_experiences(group: Group, method: Method) -> list["Experience"]:
    """One Experience of batch size 1 per sample, in the order of the group."""
    starts = method.loss_from([len(sample.prefix) for sample in group.samples])
    return [_to_experience(group, sample, start) for sample, start in zip(group.samples, starts, strict=True)]


def _to_experience(group: Group, sample: Sample, loss_from: int) -> "Experience":
    """Sequences are prompt + prefix + response, T tokens; per-step tensors have T - 1 entries, entry t for token t + 1.

    Rollout log-probs of prefix tokens with loss are the stored ones, others are 0. A prefix without them (imported as text)
    carries no loss.
    """
    question, prefix = group.question, sample.prefix
    n_prompt = len(question.prompt_ids)
    ids = question.prompt_ids + prefix.token_ids + sample.response_ids
    sequences = _row(np.asarray(ids, np.int64))
    mask = loss_mask(n_prompt, sample.path_length, len(prefix) if prefix.log_probs is None else loss_from)
    log_probs = np.zeros(len(ids), np.float32)
    log_probs[n_prompt + len(prefix) :] = sample.response_log_probs
    if prefix.log_probs is not None:
        log_probs[n_prompt : n_prompt + len(prefix)] = prefix.log_probs
        log_probs[np.frombuffer(mask, np.uint8) == 0] = 0  # -inf would make every masked sum NaN
    info = {
        "response_clip_ratio": torch.tensor([sample.truncated]),
        "prefix_length": torch.tensor([float(len(prefix))]),
        "path_length": torch.tensor([float(sample.path_length)]),
    }
    rewards = scores = None
    if sample.shaped_reward is not None:
        rewards, scores = torch.tensor([sample.shaped_reward]), torch.tensor([sample.score])
        info |= {"reward": rewards.clone(), "score": scores.clone()}
    return Experience(
        sequences=sequences,
        attention_mask=torch.ones_like(sequences),
        action_mask=_row(np.frombuffer(mask, np.uint8)[1:].astype(np.int64)),
        rollout_log_probs=_row(log_probs[1:]),
        prompts=[question.prompt],
        labels=[question.label],
        images=[None],
        mm_train_inputs=[None],
        rewards=rewards,
        scores=scores,
        response_length=torch.tensor([len(sample.response_ids)]),
        truncated=torch.tensor([sample.truncated]),
        total_length=torch.tensor([float(sequences.numel())]),
        info=info,
    )


def eval_logs(groups: Sequence[Group], n_samples: int) -> dict[str, float]:
    """Upstream's evaluation figures for each data source. Upstream finds a sample's source by its prompt, which two sources
    may share; here the place of its group is used instead."""
    sources = [([group.question.datasource], [place], [None], [None]) for place, group in enumerate(groups)]
    samples = []
    for place, group in enumerate(groups):
        scored = tuple(replace(sample, shaped_reward=sample.score) for sample in group.samples)
        for experience in to_experiences(replace(group, samples=scored), OFF):
            experience.prompts = [place]
            samples.append(experience)
    return compute_eval_metrics(sources, samples, n_samples)


def _row(values: np.ndarray) -> torch.Tensor:
    """(1, number of values)."""
    return torch.from_numpy(values[None])
