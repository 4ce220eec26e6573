"""OpenRLHF's reference model with shared prefixes, and logits in chunks."""

from typing import Any

import ray

from openrlhf_rpo.training.passes import shares_prefixes, sharing_mode, works_in_chunks
from openrlhf_rpo.training.shared_prefix.actor import compute_in_chunks, share_prefixes
from openrlhf_rpo.upstream import ReferenceModelActor


class _RPOReferenceActor(ReferenceModelActor):
    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        super().init_model_from_pretrained(strategy, *args, **kwargs)
        if works_in_chunks(strategy.args):
            compute_in_chunks(self.model, "reference")
        if shares_prefixes(strategy.args):
            share_prefixes(self.model, sharing_mode(strategy.args), "reference")


RPOReferenceActor = ray.remote(num_gpus=1)(_RPOReferenceActor)
