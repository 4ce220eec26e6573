"""The shipped math reward as a file that plain OpenRLHF can load with --reward.remote_url."""

import re

from openrlhf_rpo.rewards.math import math_reward

_END = re.compile(r"(?:(?:</s>|<eos>|<\|[^<>|]*\|>|<\uff5c[^<>\uff5c]*\uff5c>)\s*)+$")
"""Special tokens at the end, which OpenRLHF leaves in the text and training on paths does not."""


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **_: object) -> dict[str, float]:
    """OpenRLHF's interface: lists of one query (prompt + response), one prompt and one label."""
    [query], [prompt], [label] = queries, prompts, labels
    score = math_reward(_END.sub("", query[len(prompt) :]), label)
    return {"rewards": score, "scores": score}
