"""The shipped math reward as a file that plain OpenRLHF can load with --reward.remote_url."""

from openrlhf_rpo.rewards.math import math_reward


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **_: object) -> dict[str, float]:
    """OpenRLHF's interface: lists of one query (prompt + response), one prompt and one label."""
    [query], [prompt], [label] = queries, prompts, labels
    score = math_reward(query[len(prompt) :], label)
    return {"rewards": score, "scores": score}
