"""The shipped reward functions and their weighted sum: pure functions of text and lengths."""

from collections.abc import Callable
from math import fsum, isfinite
from operator import mul

from openrlhf_rpo.rewards.cosine import cosine_reward
from openrlhf_rpo.rewards.format import format_reward
from openrlhf_rpo.rewards.math import math_reward

# name -> function of (response, its accuracy, its length in tokens, length at which the cosine ends) -> reward
SHIPPED: dict[str, Callable[[str, float, int, int], float]] = {
    "math": lambda response, accuracy, length, max_len: accuracy,
    "format": lambda response, accuracy, length, max_len: format_reward(response),
    "cosine": lambda response, accuracy, length, max_len: cosine_reward(accuracy > 0, length, max_len=max_len),
}
_NEED_ACCURACY = {"math", "cosine"}

# (response, label, length in tokens) -> (reward, score)
WeightedReward = Callable[[str, str, int], tuple[float, float]]


def weighted_sum(functions: str, weights: str | None = None, cosine_max_len: int = 1000) -> WeightedReward:
    """A function that returns (reward, score): the reward is the weighted sum of the named ones (default weight: 1).

    ``functions`` and ``weights`` are comma separated. The score is the accuracy if math or cosine is included, else the
    reward. Raises ValueError for an unknown name, or unless there is one finite weight per name.
    """
    names = [name.strip() for name in functions.split(",")]
    unknown = [name for name in names if name not in SHIPPED]
    if unknown:
        raise ValueError(f"unknown reward {unknown[0]!r}; the shipped rewards are {', '.join(SHIPPED)}")
    scales = _scales(weights, len(names))
    need_accuracy = bool(_NEED_ACCURACY & set(names))

    def reward_and_score(response: str, label: str, length: int) -> tuple[float, float]:
        accuracy = math_reward(response, label) if need_accuracy else 0.0
        terms = [SHIPPED[name](response, accuracy, length, cosine_max_len) for name in names]
        reward = fsum(map(mul, scales, terms))
        return reward, (accuracy if need_accuracy else reward)

    return reward_and_score


def _scales(weights: str | None, count: int) -> list[float]:
    if weights is None:
        return [1.0] * count
    try:
        scales = [float(weight) for weight in weights.split(",")]
    except ValueError as error:
        raise ValueError(f"reward weights {weights!r} are not comma separated numbers") from error
    if len(scales) != count or not all(map(isfinite, scales)):
        raise ValueError(f"reward weights {weights!r}: {count} finite numbers are needed, one for each reward")
    return scales
