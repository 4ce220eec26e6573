"""What the controller exchanges with an engine. Does not import vLLM, which only engine processes load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_rpo.types import Rejected


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate: ``token_ids`` = prompt ids + prefix ids + what earlier steps generated, then at most
    ``max_tokens`` new tokens.

    ``rejected`` affects the draw of the first new token; it needs ``temperature`` and ``top_p`` 1.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float = 1.0
    rejected: Rejected | None = None


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """The samples of a group to generate; ``drafts``: stored paths of the question, newest first, each the bytes of
    its token ids (int32)."""

    samples: Sequence[Request]
    prompt_length: int
    drafts: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine sampled: token ids (with the end token), their log-probs, and "stop", "length" or "unfinished"."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """The samples of a group, how many tokens were drafted for them and accepted, and the seconds that the drafts of its
    engine saved since the group before (with --rpo.drafts auto)."""

    samples: list[Generated]
    drafted: int = 0
    accepted: int = 0
    saved: float = 0.0

    @property
    def longest(self) -> float:
        """The tokens of its longest sample; infinite if one is unfinished."""
        lengths = (math.inf if s.finish_reason == "unfinished" else len(s.token_ids) for s in self.samples)
        return max(lengths, default=0)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A stored path to score: ``token_ids`` = prompt ids + path ids; the last ``n_tokens`` are the path's."""

    token_ids: tuple[int, ...]
    n_tokens: int
