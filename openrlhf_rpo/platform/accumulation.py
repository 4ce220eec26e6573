"""Dynamic micro-batches (``--train.dynamic_batch_enable``) at DeepSpeed's ZeRO stages 1 and 2.

OpenRLHF 0.11.2 tells DeepSpeed that an optimizer step has one micro-batch, and then runs several. At these stages each
backward pass then overwrites the gradient of the one before (deepspeed 0.19.6, ``stage_1_and_2.py``), so the step has only
that of its last micro-batch. Here DeepSpeed is told which is the last.
"""

import functools
import inspect
from typing import Any

import wrapt

TRAINERS = {
    "openrlhf.trainer.ray.ppo_actor": ("ActorPPOTrainer", lambda trainer: trainer.actor.model),
    "openrlhf.trainer.ray.ppo_critic": ("CriticPPOTrainer", lambda trainer: trainer.critic),
}
"""Upstream's modules, their trainers, and where these have DeepSpeed's engine."""


def install() -> None:
    """Patch upstream's trainers when their modules are imported."""
    for module in TRAINERS:
        wrapt.register_post_import_hook(_patch, module)


def _patch(module: Any) -> None:
    name, engine_of = TRAINERS[module.__name__]
    trainer = getattr(module, name)
    training_step = trainer.training_step
    signature = inspect.signature(training_step)

    @functools.wraps(training_step)
    def marked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.args.train.dynamic_batch_enable:
            step = signature.bind(self, *args, **kwargs).arguments["step"]
            engine_of(self).set_gradient_accumulation_boundary(bool(self.replay_buffer.dynamic_optimizer_step[step]))
        return training_step(self, *args, **kwargs)

    trainer.training_step = marked
