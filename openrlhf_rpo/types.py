"""The data types of RPO: frozen dataclasses without dependencies.

A path is a complete stored answer. The part of it that is kept is the prefix, the number of dropped tokens is the cut,
and the newly sampled tokens are the response, so for every sample::

    path_length = prefix_length + response_length

Example: one sample from a cached path of 6 tokens cut by m = 2::

    cached path   a b c d e <end>
    prefix        a b c d                 cut = 2, prefix_length = 4
    response              x y <end>       response_length = 3
    new path      a b c d x y <end>       path_length = 7

All lengths are in tokens. Log-probs are natural logarithms under the distribution that sampled the token, after
temperature. Token ids and log-probs are arrays of 4 bytes per token, which numpy and torch read without a copy; types
convert other sequences.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    TokenIds: TypeAlias = array[int]
    LogProbs: TypeAlias = array[float]
else:  # generic since Python 3.12
    TokenIds = LogProbs = array

FinishReason = Literal["stop", "length", "unfinished"]
"""Why a sample ended: with the end token, at its length limit, or not yet (``--rpo.tail`` stopped it)."""


def as_ids(values: Iterable[int] = ()) -> TokenIds:
    """Token ids, uint32. Raises OverflowError for other integers and TypeError for non-integers."""
    return array("I", values)


def as_log_probs(values: Iterable[float] = ()) -> LogProbs:
    """Log-probs, float32, which is what engines and trainers compute."""
    return array("f", values)


def in_arrays(owner: Any, ids: str = "", logs: str = "") -> None:
    """Convert two fields of a frozen dataclass to arrays, in its ``__post_init__``. Raises ValueError for non-numbers."""
    for name, made in ((ids, as_ids), (logs, as_log_probs)):
        if name and not isinstance(values := getattr(owner, name), array | None):
            try:
                object.__setattr__(owner, name, made(values))
            except (OverflowError, TypeError) as error:
                raise ValueError(f"{name} of a {type(owner).__name__}: {error}") from error


# The slot of a question's own path. The method defines what other slots hold.
OWN = 0
# The version of tokens of unknown origin: imported, or written by an earlier version of this package.
UNKNOWN = -1


class Part(NamedTuple):
    """``n_tokens`` consecutive tokens that one policy sampled; ``version`` is the number of training steps it had completed.

    The parts of a path say who sampled what: (12, 340), (13, 20) are 340 tokens of the policy after step 12, then 20 of the
    next one (``algo.parts``).
    """

    version: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A training task. ``question_id`` is the cache key, ``prompt`` the rendered text sent to the model.

    ``text`` is the question in the data set, before any template; ``prompt_ids`` are the prompt's token ids.
    """

    question_id: str
    prompt: str
    label: str
    datasource: str = "default"
    text: str = ""
    prompt_ids: TokenIds = field(default_factory=as_ids, compare=False, repr=False)

    def __post_init__(self) -> None:
        in_arrays(self, "prompt_ids")


@dataclass(frozen=True, slots=True)
class Path:
    """A complete stored answer to one question, including the end token when ``finish_reason`` is "stop".

    ``prefix_length`` tokens were inherited from the path ``parent_id`` (0 and None in the initial cache).
    ``step`` is the global step that wrote it; ``path_id`` is set once it is stored. ``slot`` is its place among the
    question's stored paths: a new path replaces the one in its slot.
    ``log_probs`` has one entry per token, or is None for a path imported as text. ``parts`` cover all tokens, or are empty
    where nothing is known.
    """

    question_id: str
    token_ids: TokenIds
    log_probs: LogProbs | None
    finish_reason: FinishReason
    score: float
    reward: float
    prefix_length: int = 0
    step: int = 0
    path_id: int | None = None
    parent_id: int | None = None
    slot: int = OWN
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        in_arrays(self, "token_ids", "log_probs")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A rejected token of a stored path. When another is drawn in its place, this token's probability exp(``log_prob``)
    is multiplied by ``weight``, 0 <= weight < 1.
    """

    token_id: int
    log_prob: float
    weight: float


@dataclass(frozen=True, slots=True)
class Prefix:
    """The kept part of a path, from which a group (or a sample) continues. ``cut`` is m, the number of dropped tokens.

    An empty prefix (no cached path, a fresh group, or m = path length) makes the group plain GRPO. ``rejected`` is the
    path's next token, when it changes how the first response token is drawn.
    """

    token_ids: TokenIds = field(default_factory=as_ids)
    log_probs: LogProbs | None = field(default_factory=as_log_probs)
    cut: int = 0
    path: Path | None = None
    rejected: Rejected | None = None

    def __post_init__(self) -> None:
        in_arrays(self, "token_ids", "log_probs")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Sample:
    """One member of a group: ``prefix`` followed by the ``response_ids`` sampled in this step.

    ``score`` is correctness as the reward function gave it, ``shaped_reward`` the number trained on; both are None
    until known. ``reward_logs`` are further numbers that the reward function wants logged. ``parts`` cover the response.
    """

    prefix: Prefix
    response_ids: TokenIds
    response_log_probs: LogProbs
    finish_reason: FinishReason
    score: float | None = None
    shaped_reward: float | None = None
    reward_logs: Mapping[str, float] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        in_arrays(self, "response_ids", "response_log_probs")

    @property
    def path_length(self) -> int:
        return len(self.prefix) + len(self.response_ids)

    @property
    def truncated(self) -> bool:
        """Upstream's word: the sample hit its length limit."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class Visit:
    """What one step did to one question; the next visit depends on the newest one.

    ``cut`` and ``prefix_length`` are means over the group's samples, in whole tokens; ``slot`` is that of the first sample's
    path. ``shortest_path`` is the paper's l (section 3.2), in tokens. ``start_bare`` makes the next group start from the
    bare question. ``n_tokens`` were generated in all samples. ``asked`` is the reason in one word ("turn", "replay",
    "unfinished": the group had waited; "signal" and "unknown" in caches of former versions).
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
    n_tokens: int = 0
    asked: str = "turn"


@dataclass(frozen=True, slots=True)
class Group:
    """The G samples of one question in one step, in the order requested.

    ``waits``: the next step continues it, because ``--rpo.tail`` stopped it before all its samples were done. ``n_before``
    of its tokens are from earlier steps. ``visits`` are the question's earlier visits, oldest first, as many as the method
    reads; ``asked`` is that of its next one. ``due`` is the step that trains on it (0: not said).
    """

    question: Question
    samples: tuple[Sample, ...]
    visits: tuple[Visit, ...] = ()
    asked: str = "turn"
    waits: bool = False
    n_before: int = 0
    due: int = 0

    @property
    def n_tokens(self) -> int:
        """Generated in all samples."""
        return sum(len(sample.response_ids) for sample in self.samples)

    @property
    def version(self) -> int | None:
        """The oldest policy that sampled a token of a response; ``UNKNOWN`` if one is unknown, None without any part."""
        return min((part.version for sample in self.samples for part in sample.parts), default=None)

    @property
    def begun(self) -> "Begun":
        """What the cache keeps of it until a step that trains on it is committed."""
        return Begun(self.question.question_id, self.samples, self.asked, self.due)


@dataclass(frozen=True, slots=True)
class Begun:
    """A group left to a later step, ``due`` (see ``Group``).

    Its samples may have no token yet, or all of them.
    """

    question_id: str
    samples: tuple[Sample, ...]
    asked: str
    due: int


@dataclass(frozen=True, slots=True)
class CacheDecision:
    """What the method stores for one question: ``path`` replaces the cached one, or None keeps it.

    ``others`` replace the paths in other slots. ``visit.outcome`` gives the reason, which metrics count: "best",
    "random", "no_rewarded_sample", "reset", ...
    """

    path: Path | None
    visit: Visit
    others: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All paths to store."""
        return self.others if self.path is None else (self.path, *self.others)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step did, as stored and logged. ``metrics``: name -> number (docs/metrics.md)."""

    step: int
    episode: int
    consumed: int
    metrics: dict[str, float]
