"""What the controller exchanges with an engine. Does not import vLLM, which only engine processes load."""

from dataclasses import dataclass

from openrlhf_rpo.types import Rejected


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to generate: ``token_ids`` = prompt ids + prefix ids, then at most ``max_tokens`` new tokens.

    ``rejected`` affects the draw of the first new token; it needs ``temperature`` and ``top_p`` 1.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float = 1.0
    rejected: Rejected | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine sampled: token ids (with the end token), their log-probs, and "stop" or "length"."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A stored path to score: ``token_ids`` = prompt ids + path ids; the last ``n_tokens`` are the path's."""

    token_ids: tuple[int, ...]
    n_tokens: int
