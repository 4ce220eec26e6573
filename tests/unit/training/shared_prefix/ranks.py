"""A program for two data-parallel ranks: two optimizer steps under DeepSpeed, plain and shared, at each ZeRO stage.

    python tests/unit/training/shared_prefix/ranks.py RANK FOLDER

Each rank trains on groups of its own. Rank 0 writes FOLDER/results.pt: (stage, shared?) -> log-probs of its rows before
each of the steps, and the parameters after them.
"""

import os
import sys
from pathlib import Path

from openrlhf_rpo import platform

platform.choose("cpu", 0.0)
platform.prepare()

import deepspeed  # noqa: E402
import torch  # noqa: E402
from conftest import VOCABULARY, batch, group, plain_actor, tiny_model  # noqa: E402  (a program finds its own folder first)

from openrlhf_rpo.training.shared_prefix import head  # noqa: E402
from openrlhf_rpo.training.shared_prefix.actor import share_prefixes  # noqa: E402

STAGES = (0, 1, 2, 3)


def train(stage: int, shared: bool, rank: int) -> dict[str, torch.Tensor]:
    actor = plain_actor(tiny_model(), temperature=0.9)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    actor.model, *_ = deepspeed.initialize(model=actor.model, config=config)
    if shared:
        share_prefixes(actor, "on", "policy")
    ids, attention, actions = batch(group(3, 12, [5, 2, 7], seed=rank), group(5, 4, [9, 1], seed=10 + rank))
    weights = torch.randn(actions.shape, generator=torch.Generator().manual_seed(rank))
    seen = []
    for _ in range(2):
        log_probs = actor(ids, actions, attention_mask=attention) * actions
        seen.append(log_probs.detach())
        actor.model.backward((weights * log_probs).sum())
        actor.model.step()
    parameters = list(actor.model.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=stage == 3):
        return {"log_probs": torch.stack(seen), "parameters": torch.cat([p.detach().flatten() for p in parameters])}


def main() -> None:
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.compiler.set_stance("force_eager")
    head.LOGITS_AT_ONCE = 3 * VOCABULARY  # three positions at a time
    store = f"file://{folder}/store"
    deepspeed.init_distributed("gloo", init_method=store, rank=rank, world_size=2, auto_mpi_discovery=False)
    results = {(stage, shared): train(stage, shared, rank) for stage in STAGES for shared in (False, True)}
    if rank == 0:
        torch.save(results, folder / "results.pt")
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed holds groups of its own: an interpreter that ends around their threads aborts now and then


if __name__ == "__main__":
    main()
