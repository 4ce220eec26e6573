"""A sample as OpenRLHF's ``Experience``: where rollout and training meet."""

import torch

from openrlhf_rpo.algo.loss_mask import loss_mask
from openrlhf_rpo.algo.segments import segment_starts
from openrlhf_rpo.types import Group, Sample
from openrlhf_rpo.upstream import Experience


def to_experiences(group: Group, prompt_ids: tuple[int, ...], prefix_loss: str) -> list["Experience"]:
    """One Experience a sample, batch size 1, in the order of the group."""
    starts = segment_starts([len(sample.prefix) for sample in group.samples])
    return [
        _to_experience(group, sample, prompt_ids, prefix_loss, start)
        for sample, start in zip(group.samples, starts, strict=True)
    ]


def _to_experience(
    group: Group, sample: Sample, prompt_ids: tuple[int, ...], prefix_loss: str, segment_start: int
) -> "Experience":
    """Sequences are prompt + prefix + response, T tokens; per-step tensors have T - 1 entries, entry t for token t + 1.

    Rollout log-probs of the prefix are the stored ones; where a path was imported without any, its prefix is masked.
    """
    prefix = sample.prefix
    token_ids = (*prompt_ids, *prefix.token_ids, *sample.response_ids)
    known = prefix.log_probs is not None
    mode = prefix_loss if known else "mask"
    mask = loss_mask(len(prompt_ids), len(prefix), len(sample.response_ids), mode, segment_start=segment_start)
    log_probs = (*[0.0] * len(prompt_ids), *(prefix.log_probs or [0.0] * len(prefix)), *sample.response_log_probs)
    info = {
        "response_clip_ratio": torch.tensor([sample.truncated]),
        "prefix_length": torch.tensor([float(len(prefix))]),
        "path_length": torch.tensor([float(sample.path_length)]),
    }
    if sample.expected is not None:
        info["expected_score"] = torch.tensor([sample.expected])
    rewards = scores = None
    if sample.shaped_reward is not None:
        rewards, scores = torch.tensor([sample.shaped_reward]), torch.tensor([sample.score])
        info |= {"reward": rewards.clone(), "score": scores.clone()}
    return Experience(
        sequences=torch.tensor([token_ids]),
        attention_mask=torch.ones(1, len(token_ids), dtype=torch.long),
        action_mask=torch.tensor([mask[1:]], dtype=torch.long),
        rollout_log_probs=torch.tensor([log_probs[1:]], dtype=torch.float32),
        prompts=[group.question.prompt],
        labels=[group.question.label],
        images=[None],
        mm_train_inputs=[None],
        rewards=rewards,
        scores=scores,
        response_length=torch.tensor([len(sample.response_ids)]),
        truncated=torch.tensor([sample.truncated]),
        total_length=torch.tensor([float(len(token_ids))]),
        info=info,
    )
