"""One reward call: its request, its result, and how to load the function.

Worker processes import this module too, so it imports nothing heavy at the top.
"""

import numbers
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openrlhf_rpo.user_code import execute

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest float32, as in training; the sum of many such numbers is finite in Python."""


@dataclass(frozen=True, slots=True)
class RewardRequest:
    """One sample to score.

    ``query`` (upstream's name) is prompt and path decoded together, with special tokens. ``response`` is the whole path
    decoded without them, ``response_length`` its length in tokens; both include the inherited prefix.
    """

    question_id: str
    query: str
    prompt: str
    label: str
    response: str
    response_length: int


@dataclass(frozen=True, slots=True)
class RewardResult:
    """Two finite numbers; after a failure they are the stand-in values and ``failure`` is the cause."""

    reward: float
    score: float
    extra: dict[str, float] = field(default_factory=dict)
    failure: str | None = None


RewardCall = Callable[[RewardRequest], RewardResult]


@dataclass(frozen=True, slots=True)
class ShippedRewards:
    """Comma-separated names of shipped reward functions, with their weights."""

    functions: str
    weights: str | None = None
    cosine_max_len: int = 1000

    def load(self) -> RewardCall:
        from openrlhf_rpo.rewards import weighted_sum  # imported late: a user's file does not need math-verify

        reward_and_score = weighted_sum(self.functions, self.weights, self.cosine_max_len)
        return lambda r: RewardResult(*reward_and_score(r.response, r.label, r.response_length))


@dataclass(frozen=True, slots=True)
class RewardFile:
    """A user's Python file with ``reward_func(queries, prompts, labels)``, as upstream loads and calls it.

    Upstream: ``openrlhf/utils/agent.py``, ``SingleTurnAgentExecutor``; lists of one query, one prompt and one label.
    """

    path: str

    def load(self) -> RewardCall:
        path = os.path.abspath(self.path)
        reward_func = getattr(execute("reward_func", path), "reward_func", None)
        if not callable(reward_func):
            raise ValueError(f"{path} defines no function reward_func(queries, prompts, labels)")
        return lambda r: read_answer(reward_func([r.query], [r.prompt], [r.label]))


RewardSource = ShippedRewards | RewardFile


def read_answer(answer: object) -> RewardResult:
    """Read upstream's dictionary of one call: "rewards", and optionally "scores" (default: the rewards) and "extra_logs".

    Each value is a number, or a list, tuple, array or tensor of exactly one. Raises ValueError for anything else, and for a
    reward or score that is not finite in float32; such numbers of "extra_logs" are left out.
    """
    if not isinstance(answer, Mapping):
        raise ValueError(f"a dict with 'rewards' is needed, not {type(answer).__name__}")
    if "rewards" not in answer:
        raise ValueError(f"no 'rewards' among the keys {sorted(map(str, answer))}")
    reward = _finite("rewards", answer["rewards"])
    score = reward if answer.get("scores") is None else _finite("scores", answer["scores"])
    extra = answer.get("extra_logs")
    if extra is None:
        extra = {}
    if not isinstance(extra, Mapping):
        raise ValueError(f"'extra_logs' must be a dict, not {type(extra).__name__}")
    if any(not isinstance(name, str) or not name.isprintable() for name in extra):  # they name metrics, which are stored
        raise ValueError("a name in 'extra_logs' is not printable text")
    logs = {str(name): _number(name, value) for name, value in extra.items()}
    return RewardResult(reward, score, {name: number for name, number in logs.items() if abs(number) <= LARGEST})


def last_line(error: BaseException) -> str:
    """The error's type and message as one line of at most 300 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return text if len(text) <= 300 else text[:297] + "..."


def describe(error: BaseException) -> str:
    """``last_line`` and, if the user's code raised, its innermost file and line."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [(name, line) for name, line in frames if not name.startswith((os.path.dirname(__file__), "<"))]
    return last_line(error) + (f" ({os.path.basename(users[-1][0])}, line {users[-1][1]})" if users else "")


def _finite(name: str, value: Any) -> float:
    number = _number(name, value)
    if not abs(number) <= LARGEST:
        raise ValueError(f"{name!r} is {number}, not a finite number of float32")
    return number


def _number(name: object, value: Any) -> float:
    if hasattr(value, "tolist"):  # arrays and tensors, without importing either package
        value = value.tolist()
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise ValueError(f"{name!r} holds {len(value)} values for one query")
        value = value[0].tolist() if hasattr(value[0], "tolist") else value[0]
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{name!r} is not a number but {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name!r} is too large a number") from None
