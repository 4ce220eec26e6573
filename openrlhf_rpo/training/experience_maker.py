"""OpenRLHF's experience maker, told which tokens of a path were not sampled in this step."""

from collections.abc import Callable

import torch

from openrlhf_rpo.upstream import Experience, RemoteExperienceMaker


class RPOExperienceMaker(RemoteExperienceMaker):
    """``shape`` turns the scores of a whole batch, in sample order, into rewards (reward models only)."""

    def configure(self, prefix_loss: str, cap: float, shape: Callable[[list[float]], list[float]]) -> None:
        self.prefix_loss = prefix_loss
        self.cap = cap
        self.shape = shape

    @torch.no_grad()
    def make_experience(self, samples_list: list["Experience"]) -> list["Experience"]:
        """Forward passes; what a reward model gave becomes the score, and the shaped reward is trained on."""
        unscored = samples_list[0].rewards is None
        experiences = super().make_experience(samples_list)
        if unscored:
            order = torch.tensor([i for e in experiences for i in e.index])  # micro-batches may be shuffled
            scores = torch.cat([e.rewards.float() for e in experiences])
            shaped = torch.tensor(self.shape(scores[order.argsort()].tolist()))[order]
            for experience, rewards in zip(experiences, shaped.split([len(e.index) for e in experiences]), strict=True):
                experience.scores = experience.rewards.float()
                experience.rewards = rewards
                experience.info["score"] = experience.scores.clone()
                experience.info["reward"] = experience.rewards.clone()
                experience.info["shaped_reward"] = experience.rewards.clone()  # before upstream's length penalties
        for experience in experiences:
            experience.info["rollout_log_prob_gap"] = rollout_log_prob_gap(experience)
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list["Experience"]) -> list["Experience"]:
        """Upstream's estimators. Length penalties see the path's length, not only the tokens sampled now."""
        lengths = [e.response_length for e in experiences]
        for experience in experiences:
            experience.response_length = experience.info["path_length"].long()
        experiences = super().compute_advantages_and_returns(experiences)
        for experience, length in zip(experiences, lengths, strict=True):
            experience.response_length = length
            if self.prefix_loss == "weighted":
                experience.advantages = experience.advantages * prefix_token_weights(experience, self.cap)
        return experiences


def rollout_log_prob_gap(experience: "Experience") -> torch.Tensor:
    """(B,): mean |log pi_train - log pi_rollout| over the tokens sampled in this step; large when weights are stale."""
    gap = (experience.action_log_probs.float() - experience.rollout_log_probs).abs()
    is_response = (experience.action_mask > 0) & ~is_prefix(experience)
    return (gap * is_response).sum(-1) / is_response.sum(-1).clamp(min=1)


def is_prefix(experience: "Experience") -> torch.Tensor:
    """(B, T - 1) bool: tokens with loss that precede the last ``response_length`` ones of their row."""
    mask = experience.action_mask
    from_the_end = mask.flip(-1).cumsum(-1).flip(-1)
    return (mask > 0) & (from_the_end > experience.response_length.unsqueeze(-1))


def prefix_token_weights(experience: "Experience", cap: float) -> torch.Tensor:
    """(B, T - 1): min(cap, pi_theta / mu) on prefix tokens that carry loss, 1 elsewhere (paper, appendix C).

    pi_theta is the current policy (``action_log_probs``), mu the policy that sampled the token when its path was
    stored (``rollout_log_probs``).
    """
    ratio = (experience.action_log_probs.float() - experience.rollout_log_probs).clamp(max=20.0).exp().clamp(max=cap)
    return torch.where(is_prefix(experience), ratio, torch.ones_like(ratio))
