"""OpenRLHF's policy actor, with the randomness of a step keyed by the step."""

from typing import Any

import ray
import torch

from openrlhf_rpo.upstream import PolicyModelActor


class _RPOPolicyActor(PolicyModelActor):
    def fit(self, kl_ctl: float = 0.0) -> dict[str, Any]:
        """One round of training; shuffling and dropout draw from a generator seeded by (seed, optimizer steps done).

        No random state is saved in a checkpoint, so a resumed run must be able to make the same draws from the step
        alone. DeepSpeed counts optimizer steps and restores the count.
        """
        torch.manual_seed(self.strategy.seed + 1_000_003 * int(self.actor.model.global_steps))
        return super().fit(kl_ctl)


RPOPolicyActor = ray.remote(num_gpus=1)(_RPOPolicyActor)
