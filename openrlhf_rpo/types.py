"""The nouns of RPO, frozen and free of any dependency.

A path is a complete stored answer; its kept head is the prefix, what was dropped is the cut, and the tokens sampled
now are the response, so for every sample::

    path_length = prefix_length + response_length

Example, a cached path of 6 tokens cut by m = 2, one sample of the group::

    cached path   a b c d e <end>
    prefix        a b c d                 cut = 2, prefix_length = 4
    response              x y <end>       response_length = 3
    new path      a b c d x y <end>       path_length = 7

Lengths are in tokens everywhere. Log-probs are natural logarithms under the distribution that sampled the token
(after temperature).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length"]

# Slots, the places of a question's stored paths. RPO fills the first one; some rules keep a path in the others. Rules that
# keep one path a sample number them from 0.
OWN, WRONG, EXPERT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Question:
    """A training task. ``question_id`` is the cache key, ``prompt`` the rendered text sent to the model.

    ``text`` is the question as the data set has it, before any template.
    """

    question_id: str
    prompt: str
    label: str
    datasource: str = "default"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Path:
    """A complete stored answer of one question, end token included when ``finish_reason`` is "stop".

    ``prefix_length`` tokens were inherited from the path ``parent_id`` (0 and None in the initial cache).
    ``step`` is the global step that wrote it; ``path_id`` is set once it is stored. ``slot`` is its place among the
    question's stored paths: a new path replaces the one in its slot.
    ``log_probs`` has one entry a token, or is None when the path was imported as text.
    """

    question_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: FinishReason
    score: float
    reward: float
    prefix_length: int = 0
    step: int = 0
    path_id: int | None = None
    parent_id: int | None = None
    slot: int = OWN

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A stored token that was turned down: where another is drawn instead, its probability, exp(``log_prob``), counts
    ``weight`` times, 0 <= weight < 1.
    """

    token_id: int
    log_prob: float
    weight: float


@dataclass(frozen=True, slots=True)
class Prefix:
    """The kept head of a path: what a group (or a sample) starts from. ``cut`` is m, the tokens dropped.

    The empty prefix (no cached path, a fresh group, or m = path length) makes the group plain GRPO. ``rejected`` is the
    token that the path had next, where that changes how the first response token is drawn.
    """

    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] | None = ()
    cut: int = 0
    path: Path | None = None
    rejected: Rejected | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Sample:
    """One member of a group: ``prefix`` followed by the ``response_ids`` sampled in this step.

    ``score`` is correctness as the reward function gave it, ``shaped_reward`` the number trained on; both are None
    until they are known. ``reward_logs`` are further numbers that the reward function wants to see logged. ``expected`` is
    the chance that the question's history gave it before it was sampled, None unless the baseline asks for it.
    """

    prefix: Prefix
    response_ids: tuple[int, ...]
    response_log_probs: tuple[float, ...]
    finish_reason: FinishReason
    score: float | None = None
    shaped_reward: float | None = None
    reward_logs: Mapping[str, float] = field(default_factory=dict)
    expected: float | None = None

    @property
    def path_length(self) -> int:
        return len(self.prefix) + len(self.response_ids)

    @property
    def truncated(self) -> bool:
        """Upstream's word: the sample hit its length limit."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Group:
    """The G samples of one question in one step, in the order in which they were requested."""

    question: Question
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """What one step did to one question; the newest visit steers the next one.

    ``cut`` and ``prefix_length`` are means over the group's samples, in whole tokens; ``slot`` is that of the first sample's
    path. ``shortest_path`` is the paper's l (section 3.2), in tokens. ``start_bare`` makes the next group start from the
    bare prompt (spec: reset after a group without any rewarded sample).
    """

    question_id: str
    step: int
    cut: int
    prefix_length: int
    shortest_path: int
    n_samples: int
    n_rewarded: int
    outcome: str
    start_bare: bool = False
    slot: int = OWN


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """What the update rule decided for one question: ``path`` replaces the cached one, or None keeps it.

    ``others`` replace the paths in the further slots. ``visit.outcome`` names the cause, so that what was turned down is
    counted by reason: "best", "random", "no_rewarded_sample", "reset", "update_off", ...
    """

    path: Path | None
    visit: Visit
    others: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Everything that is stored."""
        return self.others if self.path is None else (self.path, *self.others)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, as stored and logged (spec section 8). ``metrics`` are flat name -> number."""

    step: int
    episode: int
    consumed: int
    metrics: dict[str, float]
