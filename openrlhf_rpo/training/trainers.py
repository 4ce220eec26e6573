"""OpenRLHF's optimizer loops, with micro-batches of whole groups and, for the policy, no needless pass."""

from typing import Any

from openrlhf_rpo.training.adapter import merged_adapter
from openrlhf_rpo.training.experience_maker import rollout_log_prob_gap
from openrlhf_rpo.training.passes import learns_from_advantages_alone, needs_old_log_probs, shares_prefixes
from openrlhf_rpo.training.shared_prefix.replay_buffer import GroupReplayBuffer
from openrlhf_rpo.training.teaching import figures_of_all, teaching_part
from openrlhf_rpo.upstream import ActorPPOTrainer, CriticPPOTrainer


def keep_groups(trainer: Any) -> None:
    """Micro-batches of whole groups, if those share their prefix."""
    if shares_prefixes(trainer.args):
        plain = trainer.replay_buffer
        trainer.replay_buffer = GroupReplayBuffer(
            trainer.micro_train_batch_size, plain.limit, plain.cpu_offload, plain.packing_samples, plain.dynamic_batch
        )


class RPOCriticTrainer(CriticPPOTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_groups(self)


class RPOActorTrainer(ActorPPOTrainer):
    def __init__(self, strategy: Any, actor: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(strategy, actor, *args, **kwargs)
        self.needs_old_log_probs = needs_old_log_probs(self.args)
        self.skips = learns_from_advantages_alone(self.args)
        keep_groups(self)

    def ppo_train(self, kl_ctl: float) -> dict[str, Any]:
        if isinstance(self.replay_buffer, GroupReplayBuffer):
            self.replay_buffer.skips = self.skips and self.is_checked
        return super().ppo_train(kl_ctl)

    @property
    def is_checked(self) -> bool:
        """Whether sharing prefixes, if the policy does, was compared with the plain pass: on a whole micro-batch."""
        return getattr(self.actor.forward, "checked", True)

    def broadcast_to_vllm(self) -> None:
        """As upstream, with a LoRA adapter merged into the weights."""
        with merged_adapter(self):
            super().broadcast_to_vllm()

    def training_step(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As upstream, on the samples that teach (``training/teaching.py``): the same gradient."""
        part = teaching_part(experience) if self.skips and self.is_checked else experience
        status = self._training_step(part, *args, **kwargs)
        if part is not experience:
            figures_of_all(status, experience)
        return status

    def _training_step(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """If old and current policy are equal, the step's own forward pass fills in ``action_log_probs``."""
        if self.needs_old_log_probs:
            return super().training_step(experience, *args, **kwargs)

        def fill_in(actor: Any, inputs: Any, output: Any) -> None:
            experience.action_log_probs.copy_(output[0].detach())
            experience.info["rollout_log_prob_gap"] = rollout_log_prob_gap(experience)

        hook = self.actor.register_forward_hook(fill_in)
        try:
            return super().training_step(experience, *args, **kwargs)
        finally:
            hook.remove()
