"""OpenRLHF's optimizer loops, with micro-batches of whole groups and, for the policy, no needless forward pass."""

from typing import Any

from openrlhf_rpo.training.adapter import merged_adapter
from openrlhf_rpo.training.experience_maker import rollout_log_prob_gap
from openrlhf_rpo.training.passes import needs_old_log_probs, shares_prefixes
from openrlhf_rpo.training.shared_prefix.replay_buffer import GroupReplayBuffer
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
        keep_groups(self)

    def broadcast_to_vllm(self) -> None:
        """As upstream, with a LoRA adapter merged into the weights."""
        with merged_adapter(self):
            super().broadcast_to_vllm()

    def training_step(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
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
