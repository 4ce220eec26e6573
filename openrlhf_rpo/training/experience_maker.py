"""OpenRLHF's experience maker, with shaped rewards, the method's baselines, and shared prefixes."""

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch

from openrlhf_rpo.algo.shaping import shape_rewards
from openrlhf_rpo.algo.variance import CENTERED, has_signal
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.training.passes import old_log_probs_come_first, shares_prefixes
from openrlhf_rpo.training.shared_prefix.batches import drawn_order, fewest_micro_batches, fit, micro_batches, over_ranks
from openrlhf_rpo.training.teaching import teaching_rows
from openrlhf_rpo.types import Group
from openrlhf_rpo.upstream import (
    Experience,
    RemoteExperienceMaker,
    apply_length_penalties,
    length_penalties,
    n_processes,
)


class RPOExperienceMaker(RemoteExperienceMaker):
    def __init__(self, config: RPOConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config = config
        self.groups: Sequence[Group] = ()
        self._prefix_advantages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def make(self, groups: Sequence[Group], samples: list["Experience"]) -> list["Experience"]:
        """Forward passes, advantages and returns of ``samples``, the samples of ``groups`` in order.

        Old log-probs are NaN unless ``old_log_probs_come_first``.
        """
        self.groups = groups
        return self.make_experience_batch(samples)

    @torch.no_grad()
    def fill_in_old_log_probs(self, experiences: list["Experience"]) -> float:
        """Give ``experiences``, as the ranks get them, the policy's log-probs where training reads them, unless they came
        first; returns the mean ``rollout_log_prob_gap`` of these rows, 0 if there are none."""
        args, rows = self.args, [list(range(len(e.sequences))) for e in experiences]
        if not old_log_probs_come_first(args):
            rows = list(map(teaching_rows, experiences))
            names = ("sequences", "action_mask", "attention_mask")
            columns = {name: [getattr(e, name) for e in experiences] for name in names}
            colocated = args.train.colocate_all or args.train.colocate_actor_ref
            refs = super()._dispatch_forward(self.actor_model_group, colocated, rows=rows, **columns)
            found = self._flatten_results(refs, args.ds.ring_attn_size * args.ds.tensor_parallel_size)
            for experience, own, log_probs in zip(experiences, rows, found, strict=True):
                experience.action_log_probs = torch.full(experience.action_mask.shape, torch.nan)
                experience.action_log_probs[own] = log_probs
        gaps = torch.cat([rollout_log_prob_gap(e)[own] for e, own in zip(experiences, rows, strict=True)])
        return gaps.mean().item() if len(gaps) else 0.0

    def split_rollout_samples(self, rollout_samples: list["Experience"]) -> list["Experience"]:
        """As upstream; with shared prefixes, micro-batches hold whole groups and ranks get equal cost."""
        if not shares_prefixes(self.args):
            return super().split_rollout_samples(rollout_samples)
        for i, sample in enumerate(rollout_samples):
            sample.index = [i]
        return [
            Experience.concat_experiences([rollout_samples[i] for i in batch], self.tokenizer.pad_token_id)
            for batch in self._group_batches([sample.sequences[0] for sample in rollout_samples])
        ]

    def _group_batches(self, rows: list[torch.Tensor]) -> list[list[int]]:
        """Sample indices of each micro-batch, rank by rank, with the same number of micro-batches per rank."""
        args = self.args
        size = self._group_size
        ranks = over_ranks(rows, size, n_processes(args.actor))
        if not args.train.dynamic_batch_enable:
            micro = args.rollout.micro_batch_size
            return [rank[i : i + micro] for rank in ranks for i in range(0, len(rank), micro)]
        limit = args.rollout.max_tokens_per_gpu
        groups = [[list(g) for _, g in groupby(rank, key=lambda i: i // size)] for rank in ranks]
        units = [fit(rows, g, limit) for g in groups]
        n = max(fewest_micro_batches(rows, u, limit) for u in units)
        order = drawn_order(n, rows)  # otherwise the first optimizer step would have the longest samples
        return [batches[i] for batches in (micro_batches(rows, u, n) for u in units) for i in order]

    def _dispatch_forward(self, group, sync_condition, **kwargs):
        """Skip the pass for old log-probs that nothing reads yet: NaN until they are filled in."""
        if group is not self.actor_model_group or old_log_probs_come_first(self.args):
            return super()._dispatch_forward(group, sync_condition, **kwargs)
        copies = self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size
        unknown = [torch.full(mask.shape, torch.nan) for mask in kwargs["action_mask"]]
        return ray.put([[x] for x in unknown for _ in range(copies)])

    @torch.no_grad()
    def make_experience(self, samples_list: list["Experience"]) -> list["Experience"]:
        """Forward passes. A reward model's output becomes the score; the shaped reward is trained on."""
        unscored = samples_list[0].rewards is None
        experiences = super().make_experience(samples_list)
        if unscored:
            scores = in_groups(experiences, [e.rewards.float() for e in experiences], self._group_size)
            lengths = [[sample.path_length for sample in group.samples] for group in self.groups]
            shaped = [x for own, n in zip(scores, lengths, strict=True) for x in shape_rewards(own, n, self.config.shaping)]
            for experience, rewards in zip(experiences, by_micro_batch(experiences, shaped), strict=True):
                experience.scores = experience.rewards.float()
                experience.rewards = rewards
                experience.info["score"] = experience.scores.clone()
                experience.info["reward"] = experience.rewards.clone()
                experience.info["shaped_reward"] = experience.rewards.clone()  # before upstream's length penalties
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list["Experience"]) -> list["Experience"]:
        """As upstream, but with length penalties on the whole path, followed by the method's baseline."""
        with length_penalties(self._penalize):
            experiences = super().compute_advantages_and_returns(experiences)
        if self.config.advantage.baseline == "zero":  # undo the centering: the estimator is reinforce, returns are raw
            for experience in experiences:
                experience.advantages = experience.returns.clone()
        return experiences

    def _penalize(self, experiences: list["Experience"], args: SimpleNamespace) -> None:
        """Replaces upstream's penalties, which count only new tokens, and as if every prompt left room for the longest
        answer. The baseline does not enter the logged reward.

        Groups without signal get rewards of 0, whose mean is 0.
        """
        lengths = [e.response_length for e in experiences]
        longest = args.rollout.max_new_tokens or args.data.max_len
        free = longest - (args.reward.overlong_buffer_len or 0)
        for experience in experiences:
            path = experience.info["path_length"].long()
            room = args.data.max_len - (experience.total_length.long() - path)
            experience.response_length = path + (longest - room).clamp(0, free)
        apply_length_penalties(experiences, args)
        for experience, length in zip(experiences, lengths, strict=True):
            experience.response_length = length
        rewards = in_groups(experiences, [e.rewards for e in experiences], self._group_size)
        self._prefix_advantages = self._find_prefix_advantages(experiences, rewards)
        baselines = by_micro_batch(experiences, self._baselines(rewards))
        for experience, baseline in zip(experiences, baselines, strict=True):
            experience.rewards = experience.rewards - baseline
        # The mean of equal rewards may differ from them in the last bit, and group_norm divides by 1e-9: eight rewards of
        # 0.2 had advantages of -10.
        if self.advantage_estimator in CENTERED:
            residuals = in_groups(experiences, [e.rewards for e in experiences], self._group_size)
            signal = by_micro_batch(experiences, [float(has_signal(group)) for group in residuals for _ in group])
            for experience, differs in zip(experiences, signal, strict=True):
                experience.rewards = experience.rewards * differs

    def get_cumulative_returns(self, rewards: torch.Tensor, action_mask: torch.Tensor, gamma: float) -> torch.Tensor:
        """As upstream, except that prefix tokens get the method's advantage for them, if it has one."""
        returns = discounted(action_mask * rewards, gamma)
        if id(action_mask) not in self._prefix_advantages:
            return returns
        prefix, advantages = self._prefix_advantages[id(action_mask)]
        return torch.where(prefix & ~advantages.isnan().unsqueeze(-1), advantages.unsqueeze(-1), returns)

    def get_advantages_and_returns(
        self, values: torch.Tensor, rewards: torch.Tensor, action_mask: torch.Tensor, gamma: float, lambd: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As upstream (generalized advantage estimation)."""
        values, rewards = action_mask * values, action_mask * rewards
        following = torch.nn.functional.pad(values[:, 1:], (0, 1))
        advantages = discounted(rewards + gamma * following - values, gamma * lambd)
        return advantages, advantages + values

    def _find_prefix_advantages(
        self, experiences: list["Experience"], rewards: list[list[float]]
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """id(action mask) of each micro-batch -> (prefix tokens with loss, (B, T - 1) bool; their advantages, (B,), NaN
        where they are the response's).

        Advantages have the estimator's unit: group_norm divides by the standard deviation of the group's rewards, and gives
        0 for a group without signal.
        """
        answers = self._answers("prefix_advantages", rewards)
        if all(answer is None for answer in answers):
            return {}
        if self.advantage_estimator == "gae":
            raise ValueError(f"method {self.config.method.name} gives prefixes advantages, which gae has of its own")
        found: list[float] = []
        for answer, own in zip(answers, rewards, strict=True):
            unit = 1.0
            if self.advantage_estimator == "group_norm":
                unit = stdev(own) + 1e-9 if has_signal(own) else math.inf
            found += [math.nan] * len(own) if answer is None else [advantage / unit for advantage in answer]
        split = by_micro_batch(experiences, found)
        return {id(e.action_mask): (is_prefix(e), a) for e, a in zip(experiences, split, strict=True)}

    def _baselines(self, rewards: list[list[float]]) -> list[float]:
        """The method's baseline of each sample; 0 without one."""
        none = [0.0] * self._group_size
        answers = self._answers("baselines", rewards)
        return [baseline for answer in answers for baseline in (none if answer is None else answer)]

    def _answers(self, what: str, rewards: list[list[float]]) -> list[Sequence[float] | None]:
        """The method's answer for each group. Raises ValueError unless it is None or has one finite number per sample."""
        ask = getattr(self.config.method, what)
        answers = [ask(group, own) for group, own in zip(self.groups, rewards, strict=True)]
        for answer in answers:
            if answer is not None and not (len(answer) == self._group_size and all(map(math.isfinite, answer))):
                wrong = f"{what} of {self._group_size} samples must be as many finite numbers: {answer}"
                raise ValueError(f"method {self.config.method.name}: {wrong}")
        return answers

    @property
    def _group_size(self) -> int:
        return self.args.rollout.n_samples_per_prompt


def discounted(terms: torch.Tensor, factor: float) -> torch.Tensor:
    """x_t + factor x_{t+1} + factor^2 x_{t+2} + ..., (B, T), summed in upstream's order and precision, to the last bit.

    Upstream's loops call torch for each token of a micro-batch: minutes per step for long answers.
    """
    columns = terms.detach().T.contiguous().numpy()  # (T, B); torch itself sums in float64
    if factor == 1:
        sums = np.add.accumulate(columns[::-1], axis=0)[::-1]
    else:
        sums, last = np.empty_like(columns), np.zeros_like(columns[0])
        for t in reversed(range(len(columns))):
            last = sums[t] = columns[t] + columns.dtype.type(factor) * last
    return torch.from_numpy(np.ascontiguousarray(sums.T))


def in_groups(experiences: list["Experience"], rows: list[torch.Tensor], group_size: int) -> list[list[Any]]:
    """``in_sample_order``, split into groups of ``group_size``."""
    values = in_sample_order(experiences, rows)
    return [values[i : i + group_size] for i in range(0, len(values), group_size)]


def in_sample_order(experiences: list["Experience"], rows: list[torch.Tensor]) -> list[Any]:
    """One value per sample, in the batch's order, from (B,) of each micro-batch; micro-batches may be shuffled."""
    order = torch.tensor([i for e in experiences for i in e.index])
    return torch.cat(rows)[order.argsort()].tolist()


def by_micro_batch(experiences: list["Experience"], values: list[float]) -> tuple[torch.Tensor, ...]:
    """The inverse of ``in_sample_order``: (B,) for each micro-batch."""
    order = torch.tensor([i for e in experiences for i in e.index])
    return torch.tensor(values)[order].split([len(e.index) for e in experiences])


def rollout_log_prob_gap(experience: "Experience") -> torch.Tensor:
    """(B,): mean |log pi_train - log pi_rollout| over the tokens sampled in this step; large if weights are stale."""
    gap = (experience.action_log_probs.float() - experience.rollout_log_probs).abs()
    is_response = (experience.action_mask > 0) & ~is_prefix(experience)
    return gap.where(is_response, 0).sum(-1) / is_response.sum(-1).clamp(min=1)


def is_prefix(experience: "Experience") -> torch.Tensor:
    """(B, T - 1) bool: tokens with loss before the last ``response_length`` ones of their row."""
    mask = experience.action_mask
    from_the_end = mask.flip(-1).cumsum(-1).flip(-1)
    return (mask > 0) & (from_the_end > experience.response_length.unsqueeze(-1))
