"""OpenRLHF's replay buffer with micro-batches of neighbouring samples, so that groups stay together."""

from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist

from openrlhf_rpo.training.shared_prefix.batches import Unit, fewest_micro_batches, fit, micro_batches
from openrlhf_rpo.training.teaching import computed
from openrlhf_rpo.upstream import Experience, NaiveReplayBuffer


class GroupReplayBuffer(NaiveReplayBuffer):
    """Each item is a whole micro-batch, so upstream's shuffling reorders micro-batches, not samples."""

    skips = False
    """Whether training leaves out samples that do not teach (``training/teaching.py``), so that they cost nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.micro_batch_size, self.sample_batch_size = self.sample_batch_size, 1

    def __len__(self) -> int:
        return len(self.dynamic_indices) if self.dynamic_batch else len(self.items) // self.micro_batch_size

    def __getitem__(self, index: int) -> list["Experience"]:
        if self.dynamic_batch:
            return super().__getitem__(index)
        return self.items[index * self.micro_batch_size : (index + 1) * self.micro_batch_size]

    def collate_fn(self, batch: list[list["Experience"]]) -> "Experience":
        return super().collate_fn(batch if self.dynamic_batch else batch[0])

    def setup_dynamic_batch(self, strategy: Any) -> None:
        """As upstream (0.11.2), except that micro-batches hold whole groups and shared tokens count once.

        In each optimizer step, every rank has as many micro-batches as the rank that needs the most.
        """
        group = strategy.ds_device_mesh["dp"].get_group()
        args = strategy.args
        size = args.train.batch_size // dist.get_world_size(group=group)
        steps = [range(i, i + size) for i in range(0, len(self.items), size)]
        rows = [computed(item, self.skips) for item in self.items]
        limit = args.train.max_tokens_per_gpu
        units = [fit(rows, self._groups(step), limit) for step in steps]
        counts = torch.tensor([fewest_micro_batches(rows, u, limit) for u in units], dtype=torch.int)
        counts = strategy.all_reduce(counts, op="max").tolist()
        parts = [micro_batches(rows, u, n) for u, n in zip(units, counts, strict=True)]
        totals = torch.tensor([self._tokens_and_samples(step) for step in steps], device=torch.cuda.current_device())
        dist.all_reduce(totals, group=group)
        self.dynamic_indices = [batch for part in parts for batch in part]
        self.dynamic_optimizer_step = [int(i == len(part) - 1) for part in parts for i in range(len(part))]
        self.dynamic_sample_loss_scale = [len(batch) / size for part in parts for batch in part]
        self.dynamic_batch_num_tokens = [t for (t, _), part in zip(totals.tolist(), parts, strict=True) for _ in part]
        self.dynamic_global_batch_size = [n for (_, n), part in zip(totals.tolist(), parts, strict=True) for _ in part]

    def _groups(self, step: range) -> list[Unit]:
        """Lists of neighbours with the same prompt."""
        return [list(members) for _, members in groupby(step, key=lambda i: self.items[i].prompts)]

    def _tokens_and_samples(self, step: range) -> list[float]:
        """Tokens with loss in an optimizer step on this rank, and how many samples have any."""
        tokens = [float(self.items[i].action_mask.sum()) for i in step]
        return [sum(tokens), float(sum(t > 0 for t in tokens))]
