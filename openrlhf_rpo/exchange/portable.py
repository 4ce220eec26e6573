"""A cached path outside its database: one row of an exported file.

Log-probs are natural; -inf is null in the file, because JSON has no infinity.
"""

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from openrlhf_rpo.cache.codec import LARGEST_LOG_PROB
from openrlhf_rpo.cache.columns import shown
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.types import FinishReason, LogProbs, Path, Question, TokenIds, as_ids, as_log_probs

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
        ("slot", pa.int64()),
        ("tokenizer", pa.string()),
    ]
)
_OF_PATH = ("question_id", "finish_reason", "score", "reward", "prefix_length", "step", "slot")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortablePath:
    """An exported path, or one to import. ``question`` is the data set's text, before any template.

    ``text`` is the path decoded without special tokens; ``token_ids`` belong to the tokenizer with the fingerprint
    ``tokenizer``. At least one of the two is set. ``score`` and ``reward`` are None until the path is scored.
    """

    question_id: str | None = None
    question: str | None = None
    label: str | None = None
    text: str | None = None
    token_ids: TokenIds | None = None
    log_probs: LogProbs | None = None
    finish_reason: FinishReason = "stop"
    score: float | None = None
    reward: float | None = None
    tokenizer: str | None = None
    where: str = field(default="", compare=False)
    """Its place in messages."""

    def is_of(self, tokenizer: str) -> bool:
        """Whether its ids belong to the tokenizer with this fingerprint."""
        return self.token_ids is not None and self.tokenizer == tokenizer

    def need_known(self, vocabulary: int) -> None:
        """Raise ExchangeError unless its ids are in [0, ``vocabulary``)."""
        if self.token_ids and max(self.token_ids) >= vocabulary:
            raise ExchangeError(
                f"{self.where}: token id {max(self.token_ids):,}, and the model's last is {vocabulary - 1:,}. To take its "
                "text instead, remove token_ids and log_probs from its row of an exported file (openrlhf-rpo cache export)"
            )


def to_row(path: Path, question: Question | None, text: str | None, tokenizer: str | None) -> dict[str, Any]:
    """A cached path as a row of ``SCHEMA``; unknown values are null."""
    log_probs = None
    if path.log_probs is not None:
        log_probs = [value if math.isfinite(value) else None for value in path.log_probs]
    row = dict.fromkeys(SCHEMA.names)
    if question is not None:
        row |= {"question": question.text, "prompt": question.prompt, "label": question.label}
    row |= {name: getattr(path, name) for name in _OF_PATH}
    return row | {"text": text, "token_ids": path.token_ids.tolist(), "log_probs": log_probs, "tokenizer": tokenizer}


def from_row(row: dict[str, Any], where: str) -> PortablePath:
    """Inverse of ``to_row``; columns may be missing. ``where`` names the row in messages.

    Raises ExchangeError for an invalid value.
    """
    ids, log_probs = _token_ids(row.get("token_ids"), where), _log_probs(row.get("log_probs"), where)
    finish_reason = row.get("finish_reason")
    if finish_reason not in (None, "stop", "length"):
        raise ExchangeError(f"{where}: finish_reason is {shown(finish_reason)}, expected stop or length")
    if log_probs is not None and (ids is None or len(log_probs) != len(ids)):
        raise ExchangeError(f"{where}: log_probs must have one value for each of token_ids")
    texts = {name: need_text(row, name, where) for name in ("question_id", "question", "label", "text", "tokenizer")}
    numbers = {name: _number(row, name, where) for name in ("score", "reward")}
    return PortablePath(
        **texts,
        **numbers,
        token_ids=ids,
        log_probs=log_probs,
        finish_reason=finish_reason or "stop",
        where=where,
    )


def _token_ids(value: Any, where: str) -> TokenIds | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < 2**32 for i in value):
        raise ExchangeError(f"{where}: token_ids must be whole numbers of at least 0, not {shown(value)}")
    return as_ids(value)


def _log_probs(value: Any, where: str) -> LogProbs | None:
    """Null is -inf in a file."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(v is None or _is_log_prob(v) for v in value):
        raise ExchangeError(f"{where}: log_probs must be finite numbers of at most 0, not {shown(value)}")
    return as_log_probs(-math.inf if v is None else v for v in value)


def _is_log_prob(value: Any) -> bool:
    return type(value) in (int, float) and -sys.float_info.max <= value < LARGEST_LOG_PROB


def need_text(row: dict[str, Any], name: str, where: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise ExchangeError(f"{where}: {name} holds {shown(value)}, which is not text")
    if value is not None and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise ExchangeError(f"{where}: {name} holds half of a character (a surrogate), which is not text")
    return value


def _number(row: dict[str, Any], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ExchangeError(f"{where}: {name} holds {shown(value)}, which is not a finite number")
    return float(value)
