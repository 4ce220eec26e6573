"""Which samples of a batch teach anything: those with an advantage that is not 0.

The others have no gradient: wrong answers under a baseline of zero, and groups whose samples all have the same reward. The
loss divides by all tokens of the optimizer step, so skipping their forward and backward pass changes no gradient.
"""

from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch

from openrlhf_rpo.training.passes import learns_from_advantages_alone
from openrlhf_rpo.training.shared_prefix.batches import over_ranks
from openrlhf_rpo.upstream import (
    Experience,
    make_experience_batch,
    n_replicas,
    remove_padding_in_sequences,
    split_experience_batch,
)

MEASURED = 64
"""Tokens of a sample that runs although it does not teach, for the figures of a training step."""


def teaches(experience: "Experience") -> torch.Tensor:
    """(B,) bool: whether a token with loss has an advantage. () for a single sample."""
    return ((experience.advantages != 0) & (experience.action_mask > 0)).any(-1)


def computed(sample: "Experience", skips: bool = True) -> torch.Tensor:
    """The tokens of a single sample that training computes; one if it is left out, as no micro-batch may be empty."""
    row = sample.sequences[sample.attention_mask.bool()]
    return row[:1] if skips and not teaches(sample) else row


def teaching_rows(experience: "Experience") -> list[int]:
    return teaches(experience).nonzero().flatten().tolist()


def teaching_part(experience: "Experience") -> "Experience":
    """Its rows that teach; the beginning of the shortest if none does, because every process takes part in every pass."""
    rows = teaching_rows(experience)
    if len(rows) == len(experience.sequences):
        return experience
    samples = remove_padding_in_sequences(split_experience_batch(experience))
    part = [samples[i] for i in rows] or [_beginning(min(samples, key=lambda sample: len(sample.sequences)))]
    return make_experience_batch(part)


def _beginning(sample: "Experience") -> "Experience":
    """A single sample's prompt and the first ``MEASURED`` tokens with loss. Changes the sample."""
    excess = len(sample.action_mask) - int(sample.action_mask.argmax()) - MEASURED
    if excess > 0:
        for name in filter(Experience.is_step_tensor_field, vars(sample)):
            if (value := getattr(sample, name)) is not None:
                setattr(sample, name, value[:-excess])
    return sample


def figures_of_all(status: dict[str, Any], experience: "Experience") -> dict[str, Any]:
    """The figures of a training step on ``teaching_part``, with those of all samples where known.

    ``status`` is what upstream's ``training_step`` returned for the part, or for the last one that ran. What training itself
    measures, such as the share of clipped ratios, remains that of the part.
    """
    own = {field.name: getattr(experience, field.name) for field in fields(experience)}
    known = {name: value for name, value in own.items() if Experience.is_episode_tensor_field(name)} | experience.info
    metrics = {
        name: torch.as_tensor(known[name], dtype=torch.float) if name in known else value
        for name, value in status["metrics"].items()
    }
    return {
        **status,
        "metrics": metrics,
        "num_samples": float(len(experience.sequences)),
        "num_action_tokens": float(experience.action_mask.sum()),
    }


def trained_share(experiences: Sequence["Experience"], args: SimpleNamespace) -> float:
    """The share of a step's samples that training runs."""
    if not learns_from_advantages_alone(args):
        return 1.0
    return torch.cat([teaches(experience) for experience in experiences]).float().mean().item()


def deal_again(experiences: list["Experience"], args: SimpleNamespace) -> list["Experience"]:
    """The samples in micro-batches, dealt out to the ranks by the tokens training computes.

    Ranks wait for each other at every micro-batch. Unchanged on one rank, and with dynamic micro-batches, which are made by
    cost. Otherwise ``index`` is lost.
    """
    ranks = n_replicas(args, "actor")
    if ranks == 1 or args.train.dynamic_batch_enable:
        return experiences
    order = torch.tensor([i for experience in experiences for i in experience.index]).argsort().tolist()
    split = [sample for experience in experiences for sample in split_experience_batch(experience)]
    samples = [split[i] for i in order]
    size = args.train.micro_batch_size
    return [
        make_experience_batch([samples[i] for i in rank[at : at + size]])
        for rank in over_ranks(list(map(computed, samples)), args.rollout.n_samples_per_prompt, ranks)
        for at in range(0, len(rank), size)
    ]
