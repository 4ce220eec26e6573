"""The shipped math reward as the kind of file that plain OpenRLHF loads with --reward.remote_url."""

from openrlhf_rpo.rewards.math import math_reward


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **_: object) -> dict[str, float]:
    """OpenRLHF's contract: lists of one query (prompt + response), prompt and label in; rewards and scores out."""
    [query], [prompt], [label] = queries, prompts, labels
    score = math_reward(query[len(prompt) :], label)
    return {"rewards": score, "scores": score}
