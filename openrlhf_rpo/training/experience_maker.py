"""OpenRLHF's experience maker, told which tokens of a path were not sampled in this step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import ray
import torch

from openrlhf_rpo.algo.baseline import depth_baselines, history_baselines
from openrlhf_rpo.algo.segments import segment_advantages
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.training.passes import needs_old_log_probs, shares_prefixes
from openrlhf_rpo.training.shared_prefix.batches import fewest_micro_batches, fit, micro_batches, over_ranks
from openrlhf_rpo.upstream import Experience, RemoteExperienceMaker, apply_length_penalties


class RPOExperienceMaker(RemoteExperienceMaker):
    """``shape`` turns the scores of a whole batch, in sample order, into rewards (reward models only)."""

    def configure(self, config: RPOConfig, shape: Callable[[list[float]], list[float]]) -> None:
        self.config = config
        self.shape = shape
        self._segments: Iterator[tuple[Experience, torch.Tensor, torch.Tensor]] = iter(())

    def split_rollout_samples(self, rollout_samples: list["Experience"]) -> list["Experience"]:
        """Upstream's micro-batches; with shared prefixes they are of whole groups, and ranks get equal cost."""
        if not shares_prefixes(self.args):
            return super().split_rollout_samples(rollout_samples)
        for i, sample in enumerate(rollout_samples):
            sample.index = [i]
        return [
            Experience.concat_experiences([rollout_samples[i] for i in batch], self.tokenizer.pad_token_id)
            for batch in self._group_batches([sample.sequences[0] for sample in rollout_samples])
        ]

    def _group_batches(self, rows: list[torch.Tensor]) -> list[list[int]]:
        """Indices of the samples of each micro-batch, rank after rank, equally many micro-batches a rank."""
        args = self.args
        size = args.rollout.n_samples_per_prompt
        ranks = over_ranks(rows, size, args.actor.num_nodes * args.actor.num_gpus_per_node)
        if not args.train.dynamic_batch_enable:
            micro = args.rollout.micro_batch_size
            return [rank[i : i + micro] for rank in ranks for i in range(0, len(rank), micro)]
        limit = args.rollout.max_tokens_per_gpu
        groups = [[list(g) for _, g in groupby(rank, key=lambda i: i // size)] for rank in ranks]
        units = [fit(rows, g, limit) for g in groups]
        n = max(fewest_micro_batches(rows, u, limit) for u in units)
        return [batch for u in units for batch in micro_batches(rows, u, n)]

    def _dispatch_forward(self, group, sync_condition, **kwargs):
        """No pass for old log-probs that the training step has anyway: not a number, until it fills them in."""
        if group is not self.actor_model_group or needs_old_log_probs(self.args):
            return super()._dispatch_forward(group, sync_condition, **kwargs)
        copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        unknown = [torch.full(mask.shape, torch.nan) for mask in kwargs["action_mask"]]
        return ray.put([[x] for x in unknown for _ in range(copies)])

    @torch.no_grad()
    def make_experience(self, samples_list: list["Experience"]) -> list["Experience"]:
        """Forward passes; what a reward model gave becomes the score, and the shaped reward is trained on."""
        unscored = samples_list[0].rewards is None
        experiences = super().make_experience(samples_list)
        if unscored:
            shaped = self.shape(in_sample_order(experiences, [e.rewards.float() for e in experiences]))
            for experience, rewards in zip(experiences, by_micro_batch(experiences, shaped), strict=True):
                experience.scores = experience.rewards.float()
                experience.rewards = rewards
                experience.info["score"] = experience.scores.clone()
                experience.info["reward"] = experience.rewards.clone()
                experience.info["shaped_reward"] = experience.rewards.clone()  # before upstream's length penalties
        if needs_old_log_probs(self.args):  # else the training step measures it
            for experience in experiences:
                experience.info["rollout_log_prob_gap"] = rollout_log_prob_gap(experience)
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list["Experience"]) -> list["Experience"]:
        """Upstream's length penalties, which see the path's length; segments and baselines; upstream's estimators."""
        n_samples = self.args.rollout.n_samples_per_prompt
        penalized = self._penalize(experiences)
        if self.config.prefix_loss.mode == "segment":
            of_segments = segment_advantages_of(experiences, n_samples, self.advantage_estimator == "group_norm")
            self._segments = iter([(e, is_prefix(e), a) for e, a in zip(experiences, of_segments, strict=True)])
        if self.config.advantage.baseline in ("depth", "history"):
            subtract_baselines(experiences, n_samples)
        with self._upstream_options():
            experiences = super().compute_advantages_and_returns(experiences)
        for experience, rewards in zip(experiences, penalized, strict=True):
            if "reward" in experience.info:  # upstream's copy is without the baseline
                experience.info["reward"] = rewards
            if self.config.prefix_loss.mode == "weighted":
                weights = prefix_token_weights(experience, self.config.prefix_loss.cap)
                experience.advantages = experience.advantages * weights
            if self.config.advantage.weight == "path":
                experience.advantages = experience.advantages * written_share(experience)
        return experiences

    def _penalize(self, experiences: list["Experience"]) -> list[torch.Tensor]:
        """Upstream's length penalties, not only by the tokens sampled now but by the path's; (B,) rewards of each batch."""
        lengths = [e.response_length for e in experiences]
        for experience in experiences:
            experience.rewards = experience.rewards.float()
            experience.response_length = experience.info["path_length"].long()
        apply_length_penalties(experiences, self.args)
        for experience, length in zip(experiences, lengths, strict=True):
            experience.response_length = length
        return [e.rewards.clone() for e in experiences]

    @contextmanager
    def _upstream_options(self) -> Iterator[None]:
        """Upstream's options without the penalties, which would come a second time, and after the baseline.

        With the baseline ``zero`` also without the estimator's name, by which upstream centers and normalizes.
        """
        args = self.strategy.args
        off = {"overlong_buffer_len": None, "stop_properly_penalty_coef": None}
        changed = {"reward": SimpleNamespace(**vars(args.reward) | off)}
        if self.config.advantage.baseline == "zero":
            advantage = SimpleNamespace(**vars(args.algo.advantage) | {"estimator": "zero"})
            changed["algo"] = SimpleNamespace(**vars(args.algo) | {"advantage": advantage})
        self.strategy.args = SimpleNamespace(**vars(args) | changed)
        try:
            yield
        finally:
            self.strategy.args = args

    def get_cumulative_returns(self, rewards: torch.Tensor, action_mask: torch.Tensor, gamma: float) -> torch.Tensor:
        """Upstream's, called for one micro-batch after the other; a segment's tokens get what it was worth."""
        returns = super().get_cumulative_returns(rewards, action_mask, gamma)
        experience, of_segment, advantage = next(self._segments, (None, None, None))
        if experience is None:
            return returns
        return torch.where(of_segment, advantage.unsqueeze(-1), returns)


def segment_advantages_of(experiences: list["Experience"], group_size: int, normed: bool) -> tuple[torch.Tensor, ...]:
    """(B,) of each micro-batch: ``algo/segments.py``'s advantage of the segment that each sample trains on.

    ``normed``: in the unit of ``group_norm``'s advantages, the standard deviation of the group's rewards (before a
    baseline, which may leave none).
    """
    values = []
    for rewards, depths in zip(*_rewards_and_depths(experiences, group_size), strict=True):
        unit = stdev(rewards) + 1e-9 if normed else 1.0
        values += [advantage / unit for advantage in segment_advantages(rewards, depths)]
    return by_micro_batch(experiences, values)


def subtract_baselines(experiences: list["Experience"], group_size: int) -> None:
    """Take ``algo/baseline.py``'s b from every reward, in place; groups are ``group_size`` samples in a row, by index.

    The history has its say where the rollout asked it (``Sample.expected``).
    """
    rewards, depths = _rewards_and_depths(experiences, group_size)
    if "expected_score" in experiences[0].info:
        expected = in_groups(experiences, [e.info["expected_score"] for e in experiences], group_size)
        baselines = [b for group in zip(rewards, depths, expected, strict=True) for b in history_baselines(*group)]
    else:
        baselines = [b for group in zip(rewards, depths, strict=True) for b in depth_baselines(*group)]
    for experience, baseline in zip(experiences, by_micro_batch(experiences, baselines), strict=True):
        experience.rewards = experience.rewards.float() - baseline


def _rewards_and_depths(experiences: list["Experience"], group_size: int) -> tuple[list[list[float]], list[list[int]]]:
    """Of every group's samples; a depth is a prefix length in tokens."""
    rewards = in_groups(experiences, [e.rewards.float() for e in experiences], group_size)
    return rewards, in_groups(experiences, [e.info["prefix_length"].long() for e in experiences], group_size)


def in_groups(experiences: list["Experience"], rows: list[torch.Tensor], group_size: int) -> list[list[Any]]:
    """``in_sample_order``, cut into groups of ``group_size``."""
    values = in_sample_order(experiences, rows)
    return [values[i : i + group_size] for i in range(0, len(values), group_size)]


def in_sample_order(experiences: list["Experience"], rows: list[torch.Tensor]) -> list[Any]:
    """One value a sample, in the batch's order, from (B,) of each micro-batch; these may be shuffled."""
    order = torch.tensor([i for e in experiences for i in e.index])
    return torch.cat(rows)[order.argsort()].tolist()


def by_micro_batch(experiences: list["Experience"], values: list[float]) -> tuple[torch.Tensor, ...]:
    """Inverse of ``in_sample_order``: (B,) for each micro-batch."""
    order = torch.tensor([i for e in experiences for i in e.index])
    return torch.tensor(values)[order].split([len(e.index) for e in experiences])


def written_share(experience: "Experience") -> torch.Tensor:
    """(B, 1): tokens that carry loss, as a share of the path's. A mean over them becomes a sum over the path's length."""
    n_tokens = (experience.action_mask > 0).sum(-1, keepdim=True)
    return n_tokens / experience.info["path_length"].unsqueeze(-1).clamp(min=1)


def rollout_log_prob_gap(experience: "Experience") -> torch.Tensor:
    """(B,): mean |log pi_train - log pi_rollout| over the tokens sampled in this step; large when weights are stale."""
    gap = (experience.action_log_probs.float() - experience.rollout_log_probs).abs()
    is_response = (experience.action_mask > 0) & ~is_prefix(experience)
    return (gap * is_response).sum(-1) / is_response.sum(-1).clamp(min=1)


def is_prefix(experience: "Experience") -> torch.Tensor:
    """(B, T - 1) bool: tokens with loss that precede the last ``response_length`` ones of their row."""
    mask = experience.action_mask
    from_the_end = mask.flip(-1).cumsum(-1).flip(-1)
    return (mask > 0) & (from_the_end > experience.response_length.unsqueeze(-1))


def prefix_token_weights(experience: "Experience", cap: float) -> torch.Tensor:
    """(B, T - 1): min(cap, pi_theta / mu) on prefix tokens that carry loss, 1 elsewhere (paper, appendix C).

    pi_theta is the current policy (``action_log_probs``), mu the policy that sampled the token when its path was
    stored (``rollout_log_probs``).
    """
    ratio = (experience.action_log_probs.float() - experience.rollout_log_probs).clamp(max=20.0).exp().clamp(max=cap)
    return torch.where(is_prefix(experience), ratio, torch.ones_like(ratio))
