"""OpenRLHF's policy and critic actors, changed so that a resumed run continues as if it had never stopped."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import ray
import torch

from openrlhf_rpo.errors import Failed
from openrlhf_rpo.training.average import EMA_FILE, keep_in_float32, load_ema, rounded, save_ema
from openrlhf_rpo.training.passes import shares_prefixes, sharing_mode, works_in_chunks
from openrlhf_rpo.training.shared_prefix.actor import compute_in_chunks, share_prefixes, unchecked
from openrlhf_rpo.training.shared_prefix.critic import share_critics_prefixes
from openrlhf_rpo.training.trainers import RPOActorTrainer, RPOCriticTrainer
from openrlhf_rpo.upstream import STAGING, CriticModelActor, PolicyModelActor, actor_trainer, critic_trainer


def seed_round(seed: int, optimizer_steps: int) -> None:
    """Seed torch for one round of training, from numbers that a resumed run has too.

    Shuffling and dropout use torch's global generator, whose state is in no checkpoint; DeepSpeed restores its count of
    optimizer steps.
    """
    torch.manual_seed(seed + 1_000_003 * int(optimizer_steps))
    # --train.full_determinism_enable fills all new memory with NaN: seconds a step for DeepSpeed's gigabyte buffers.
    torch.utils.deterministic.fill_uninitialized_memory = False


@contextmanager
def staged(args: Any, tag: str) -> Iterator[None]:
    """While inside, upstream writes below ``Checkpoints.staging`` instead of ``--ckpt.path``, into a folder for this tag."""
    path = args.ckpt.path
    args.ckpt.path = os.path.join(path, STAGING, tag)
    try:
        yield
    finally:
        args.ckpt.path = path


@contextmanager
def without_buffers(engine: Any) -> Iterator[None]:
    """While inside, a DeepSpeed ``engine``'s optimizer states are without the buffers to which sleeping (--ds.enable_sleep,
    ZeRO stage 3) moves them. Loaded from a checkpoint, these would be on the GPU, and the states would never leave it."""
    states = getattr(engine.optimizer, "optimizer", engine.optimizer).state.values()
    buffers = [(state, key) for state in states for key in state if key.endswith("_offload_buffer")]
    kept = [(state, key, state.pop(key)) for state, key in buffers]
    try:
        yield
    finally:
        for state, key, buffer in kept:
            state[key] = buffer


class _SeesFiles:
    def blind_to(self, file: str) -> str | None:
        """The address of this process's node if it does not see ``file``, else None."""
        return None if os.path.exists(file) else ray.util.get_node_ip_address()


class _RPOPolicyActor(_SeesFiles, PolicyModelActor):
    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        with actor_trainer(RPOActorTrainer):
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        if works_in_chunks(strategy.args):
            compute_in_chunks(self.actor, "policy")
        if shares_prefixes(strategy.args):
            share_prefixes(self.actor, sharing_mode(strategy.args), "policy")
        if self.ema_model is not None:
            keep_in_float32(self.ema_model)
            if self.checkpoint_states:
                load_ema(self.ema_model, _ema_file(strategy.args, _latest(strategy.args)))

    def forward(self, rows: list[int] | None = None, **batch: Any) -> torch.Tensor:
        """As upstream; only these ``rows`` of the batch, if given. Sharing is checked on all, that is on whole groups.

        Without rows two tokens run, because at ZeRO stage 3 every process takes part in every pass.
        """
        if rows is None:
            return super().forward(**batch)
        if shared := unchecked(self.actor):
            device = torch.cuda.current_device()
            shared.trusted(*(batch[name].to(device) for name in ("sequences", "action_mask", "attention_mask")))
        if not rows:
            row, attended, loss = (batch[name][:1, :2] for name in ("sequences", "attention_mask", "action_mask"))
            return super().forward(sequences=row, attention_mask=attended, action_mask=loss[:, :1])[:0]
        return super().forward(**{name: tensor[rows] for name, tensor in batch.items()})

    def fit(self, kl_ctl: float = 0.0) -> dict[str, Any]:
        seed_round(self.strategy.seed, self.actor.model.global_steps)
        return super().fit(kl_ctl)

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        """Write to the staging folder, with the moving average (--train.enable_ema) that upstream leaves out."""
        need_finite_weights(self.actor)
        with staged(self.strategy.args, tag):
            with self._exported() if self.save_hf_ckpt else nullcontext(), without_buffers(self.actor.model):
                super().save_checkpoint(tag, *args, **kwargs)
            if self.ema_model is not None and not self.disable_ds_ckpt and self.strategy.is_rank_0():
                save_ema(self.ema_model, _ema_file(self.strategy.args, tag))

    def save_model(self) -> None:
        need_finite_weights(self.actor)
        with self._exported():
            super().save_model()

    def _exported(self) -> AbstractContextManager[None]:
        """While inside, the average may be saved as a model."""
        return rounded(self.ema_model, self.actor) if self.ema_model is not None else nullcontext()


class _RPOCriticActor(_SeesFiles, CriticModelActor):
    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        with critic_trainer(RPOCriticTrainer):
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        if shares_prefixes(strategy.args):
            share_critics_prefixes(self.critic, sharing_mode(strategy.args))

    def fit(self) -> dict[str, Any]:
        seed_round(self.strategy.seed, self.critic.global_steps)
        return super().fit()

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        need_finite_weights(self.critic)
        with staged(self.strategy.args, tag), without_buffers(self.critic):
            super().save_checkpoint(tag, *args, **kwargs)


def need_finite_weights(model: Any) -> None:
    """Raises Failed when a weight that this process holds is NaN or infinite, so that it is never written.

    Under ZeRO stage 3 a process holds its part of each parameter, ``ds_tensor``.
    """
    for name, parameter in model.named_parameters():
        held = parameter.ds_tensor if hasattr(parameter, "ds_tensor") else parameter
        if not torch.isfinite(held).all():
            raise Failed(
                f"the weights {name} are not finite: nothing is written, and the last checkpoint stays as it was. Likely "
                "causes: --actor.adam.lr is too large, or the base model has such weights"
            )


def _ema_file(args: Any, tag: str) -> str:
    return os.path.join(args.ckpt.path, "_actor", tag, EMA_FILE)


def _latest(args: Any) -> str:
    with open(os.path.join(args.ckpt.path, "_actor", "latest")) as f:
        return f.read().strip()


RPOPolicyActor = ray.remote(num_gpus=1)(_RPOPolicyActor)
RPOCriticActor = ray.remote(num_gpus=1)(_RPOCriticActor)
