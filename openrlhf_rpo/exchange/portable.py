"""A cached path outside its database: with its question, its text, and the fingerprint of its tokenizer.

One row of an exported file. Log-probs are natural; one of -inf is null in the file, because JSON knows no infinity.
"""

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from openrlhf_rpo.exchange.errors import ExchangeError
from openrlhf_rpo.types import FinishReason, Path, Question

SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("prompt", pa.string()),
        ("label", pa.string()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.uint32())),
        ("log_probs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("prefix_length", pa.int64()),
        ("step", pa.int64()),
        ("tokenizer", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortablePath:
    """A path to import, or exported. ``question`` is the data set's own text, before any template.

    ``text`` is the path decoded without special tokens, ``token_ids`` the path of the tokenizer with the fingerprint
    ``tokenizer``; one of the two is there. ``score`` and ``reward`` are None where nobody has judged the path yet.
    """

    question_id: str | None = None
    question: str | None = None
    label: str | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None
    finish_reason: FinishReason = "stop"
    score: float | None = None
    reward: float | None = None
    tokenizer: str | None = None

    def is_of(self, tokenizer: str) -> bool:
        """Whether its ids are those of the tokenizer with this fingerprint."""
        return self.token_ids is not None and self.tokenizer == tokenizer


def to_row(path: Path, question: Question | None, text: str | None, tokenizer: str | None) -> dict[str, Any]:
    """A cached path as a row of ``SCHEMA``; what is not known is null."""
    log_probs = None
    if path.log_probs is not None:
        log_probs = [value if math.isfinite(value) else None for value in path.log_probs]
    return {
        "question_id": path.question_id,
        "question": question.text if question is not None else None,
        "prompt": question.prompt if question is not None else None,
        "label": question.label if question is not None else None,
        "text": text,
        "token_ids": list(path.token_ids),
        "log_probs": log_probs,
        "finish_reason": path.finish_reason,
        "score": path.score,
        "reward": path.reward,
        "prefix_length": path.prefix_length,
        "step": path.step,
        "tokenizer": tokenizer,
    }


def from_row(row: dict[str, Any], where: str) -> PortablePath:
    """Inverse of ``to_row``, also for a file made by hand that has fewer columns. ``where`` names the row in messages.

    Raises ExchangeError on a value that no path can have.
    """
    ids, log_probs = row.get("token_ids"), row.get("log_probs")
    finish_reason = row.get("finish_reason") or "stop"
    if finish_reason not in ("stop", "length"):
        raise ExchangeError(f"{where}: finish_reason is {finish_reason!r}, expected stop or length")
    if ids is not None and not all(isinstance(i, int) and 0 <= i < 2**32 for i in ids):
        raise ExchangeError(f"{where}: token_ids must be whole numbers from 0 on")
    if log_probs is not None and (ids is None or len(log_probs) != len(ids)):
        raise ExchangeError(f"{where}: log_probs must be one for each of token_ids")
    return PortablePath(
        question_id=_text(row, "question_id", where),
        question=_text(row, "question", where),
        label=_text(row, "label", where),
        text=_text(row, "text", where),
        token_ids=None if ids is None else tuple(ids),
        log_probs=None if log_probs is None else tuple(-math.inf if v is None else float(v) for v in log_probs),
        finish_reason=finish_reason,
        score=_number(row, "score", where),
        reward=_number(row, "reward", where),
        tokenizer=_text(row, "tokenizer", where),
    )


def _text(row: dict[str, Any], name: str, where: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise ExchangeError(f"{where}: {name} holds {value!r}, which is not text")
    return value


def _number(row: dict[str, Any], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ExchangeError(f"{where}: {name} holds {value!r}, which is no finite number")
    return float(value)
