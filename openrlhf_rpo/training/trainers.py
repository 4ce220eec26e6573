"""OpenRLHF's optimizer loops, with micro-batches of whole groups and, for the policy, no needless pass."""

from typing import Any

from openrlhf_rpo.training.adapter import merged_adapter
from openrlhf_rpo.training.average import moving_average
from openrlhf_rpo.training.experience_maker import rollout_log_prob_gap
from openrlhf_rpo.training.passes import learns_from_advantages_alone, needs_old_log_probs, shares_prefixes
from openrlhf_rpo.training.shared_prefix.actor import first_rows, unchecked
from openrlhf_rpo.training.shared_prefix.layout import lay_out
from openrlhf_rpo.training.shared_prefix.replay_buffer import GroupReplayBuffer
from openrlhf_rpo.training.teaching import figures_of_all, teaches, teaching_part
from openrlhf_rpo.upstream import ActorPPOTrainer, CriticPPOTrainer


def keep_groups(trainer: Any, skips: bool = False) -> None:
    """Keep groups whole in micro-batches if they share prefixes; ``skips`` is ``GroupReplayBuffer``'s."""
    if shares_prefixes(trainer.args):
        plain = trainer.replay_buffer
        trainer.replay_buffer = GroupReplayBuffer(
            trainer.micro_train_batch_size, plain.limit, plain.cpu_offload, plain.packing_samples, plain.dynamic_batch
        )
        trainer.replay_buffer.skips = skips


class RPOCriticTrainer(CriticPPOTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_groups(self)

    def ppo_train(self) -> dict[str, Any]:
        """As upstream, but with the gradient norm of the last optimizer step, like the policy's. Upstream's mean over
        micro-batches includes the previous step's norm, which a resumed run lacks."""
        status = super().ppo_train()
        if status:
            status["critic_grad_norm"] = self.strategy.get_grad_norm(self.critic)
        return status


class RPOActorTrainer(ActorPPOTrainer):
    def __init__(self, strategy: Any, actor: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(strategy, actor, *args, **kwargs)
        self.needs_old_log_probs = needs_old_log_probs(self.args)
        self.skips = learns_from_advantages_alone(self.args)
        self.last: dict[str, Any] = {}  # the figures of the last micro-batch that ran
        keep_groups(self, self.skips)
        strategy.moving_average = moving_average

    def broadcast_to_vllm(self) -> None:
        """As upstream, with a LoRA adapter merged into the weights."""
        with merged_adapter(self):
            super().broadcast_to_vllm()

    def training_step(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As upstream, on the samples that teach (``training/teaching.py``): the same gradient."""
        if not self.skips:
            return self._training_step(experience, *args, **kwargs)
        if self._needs_no_pass(experience):
            self.actor.model.micro_steps += 1
            status = figures_of_all(self.last, experience)
            status["metrics"]["policy_loss"] = 0.0
            return status
        part = teaching_part(experience)
        if shared := unchecked(self.actor):
            rows = experience.sequences, experience.action_mask, experience.attention_mask
            shared.trusted(*first_rows(lay_out(part.sequences, part.attention_mask).tokens, *rows))
        self.last = self._training_step(part, *args, **kwargs)
        return self.last if part is experience else figures_of_all(self.last, experience)

    def _needs_no_pass(self, experience: Any) -> bool:
        """Whether no process has anything to teach in this micro-batch.

        False for an optimizer step's first one, as those without a pass repeat what training measured before them, and for
        its last, which takes the step.
        """
        engine = self.actor.model
        first = engine.micro_steps % engine.gradient_accumulation_steps() == 0
        if self.args.train.dynamic_batch_enable or first or engine.is_gradient_accumulation_boundary():
            return False
        return not self.strategy.all_reduce(float(teaches(experience).any()), "max")

    def _training_step(self, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """If old and current policy are equal, or nothing teaches, the step's own pass fills in ``action_log_probs``."""
        if self.needs_old_log_probs and (not self.skips or teaches(experience).any()):
            return super().training_step(experience, *args, **kwargs)

        def fill_in(actor: Any, inputs: Any, output: Any) -> None:
            experience.action_log_probs.copy_(output[0].detach())
            if not self.needs_old_log_probs:  # else measured before, and all ranks report the same figures
                experience.info["rollout_log_prob_gap"] = rollout_log_prob_gap(experience)

        hook = self.actor.register_forward_hook(fill_in)
        try:
            return super().training_step(experience, *args, **kwargs)
        finally:
            hook.remove()
