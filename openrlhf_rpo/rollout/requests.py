"""What the controller exchanges with an engine. Does not import vLLM, which only engine processes load."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from openrlhf_rpo.types import LogProbs, Rejected, TokenIds, as_log_probs, in_arrays


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate: ``token_ids`` = prompt ids + prefix ids + what earlier steps generated, then at most
    ``max_tokens`` new tokens.

    ``rejected`` affects the draw of the first new token; it needs ``temperature`` and ``top_p`` 1.
    """

    token_ids: TokenIds
    max_tokens: int
    seed: int
    temperature: float
    top_p: float = 1.0
    rejected: Rejected | None = None

    def __post_init__(self) -> None:
        in_arrays(self, "token_ids")


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """The samples of a group to generate; ``drafts``: stored paths of the question, newest first, each the bytes of
    its token ids (int32). ``read``: new tokens get log-probs as from a ``ScoreRequest``, not those they were drawn with; the
    two differ by rounding."""

    samples: Sequence[Request]
    prompt_length: int
    drafts: Sequence[bytes] = ()
    read: bool = False

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine sampled: token ids (with the end token), their log-probs, and "stop", "length" or "unfinished"."""

    token_ids: TokenIds
    log_probs: LogProbs
    finish_reason: str

    def __post_init__(self) -> None:
        in_arrays(self, "token_ids", "log_probs")


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """The samples of a group, and what the engine counted (``speculation.forget``, ``rounding``)."""

    samples: list[Generated]
    counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def unfinished(self) -> bool:
        """Whether a sample was stopped."""
        return any(sample.finish_reason == "unfinished" for sample in self.samples)

    @property
    def longest(self) -> float:
        """The tokens of its longest sample; infinite if one is unfinished."""
        lengths = (math.inf if s.finish_reason == "unfinished" else len(s.token_ids) for s in self.samples)
        return max(lengths, default=0)


def rounding(samples: Iterable[tuple[Generated, Generated]]) -> dict[str, float]:
    """How much the log-probs of samples when read differ from those they were drawn with.

    "read": tokens; "gap": the sum of absolute differences in nats; "noise": how many tokens verified reuse would reject
    because of it on average, at lenience 1, under the same policy: max(0, 1 - p / q).
    """
    pairs = [(drawn.log_probs, read.log_probs) for drawn, read in samples] or [(as_log_probs(), as_log_probs())]
    drawn, read = (np.concatenate(column).astype(float) for column in zip(*pairs, strict=True))
    gaps = read - drawn
    return {"read": len(gaps), "gap": float(abs(gaps).sum()), "noise": float(-np.expm1(np.minimum(gaps, 0)).sum())}


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A stored path to score: ``token_ids`` = prompt ids + path ids; the last ``n_tokens`` are the path's."""

    token_ids: TokenIds
    n_tokens: int

    def __post_init__(self) -> None:
        in_arrays(self, "token_ids")


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A group of ``n_samples`` whose prefixes depend on the current log-probs of ``paths``; ``begin`` turns these into its
    request."""

    paths: list[ScoreRequest]
    n_samples: int
    begin: Callable[[list[LogProbs]], GroupRequest]

    def __len__(self) -> int:
        return self.n_samples
