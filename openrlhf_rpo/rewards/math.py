r"""Accuracy of a mathematical answer: 1.0 if it equals the label, else 0.0.

The answer is the content of the last \boxed{...} in the response or, without a box, what follows an anchor such as "the
final answer is". A number elsewhere in the text does not count, so a truncated response is not rewarded by luck. Answers are
equal if their text is, or if math-verify (https://github.com/huggingface/Math-Verify) says so: \frac{84}{2} equals 42.

Degenerate cases: no answer, an empty or unclosed box, or an expression that cannot be parsed or compared in time
(\boxed{9^{9^{9}}}) gives 0.0. With a label that cannot be parsed only the same text in the box gives 1.0; ``unparsable``
finds such labels before a run starts. (The reference gives every response 1.0 then.)
"""

import re
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

_BOX = re.compile(r"\\boxed\s*\{")
_ANSWER = (
    LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
    ExprExtractionConfig(try_extract_without_anchor=False),
)
_ANYWHERE = (LatexExtractionConfig(), ExprExtractionConfig())
_SECONDS = 5  # limit of one parse or comparison, an integer


def math_reward(response: str, label: str) -> float:
    """1.0 if the answer in ``response`` equals ``label``, else 0.0.

    Outside the main thread math-verify has no time limit (it needs ``signal.alarm``), so the caller must set one.
    """
    box = last_boxed(response)
    if box and box == label.strip():
        return 1.0
    if box == "":
        return 0.0
    answer = _parse(response if box is None else _boxed(box.removesuffix(".")), _ANSWER)
    gold = _gold(label) if answer else ()
    return float(bool(gold) and verify(list(gold), answer, timeout_seconds=_seconds()))


def parses(label: str) -> bool:
    """Whether math-verify understands ``label``, with or without $...$ or \\boxed{...} around it."""
    return bool(_gold(label))


def unparsable(labels: Iterable[str]) -> list[int]:
    """The positions of labels that math-verify cannot parse, so that only the same text matches them."""
    return [i for i, label in enumerate(labels) if not parses(label)]


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, stripped; None without a box, "" if it is empty or never closes."""
    start = None
    for match in _BOX.finditer(text):
        start = match.end()
    if start is None:
        return None
    depth = 1
    for i in range(start, len(text)):
        if text[i] in "{}" and text[i - 1] != "\\":
            depth += 1 if text[i] == "{" else -1
        if depth == 0:
            return text[start:i].strip()
    return ""


@lru_cache(maxsize=4096)  # a group's samples share their label
def _gold(label: str) -> tuple[Any, ...]:
    return tuple(_parse(_boxed(label), _ANSWER) or _parse(label, _ANYWHERE)) if label.strip() else ()


def _boxed(expression: str) -> str:
    return f"\\boxed{{{expression}}}"


def _parse(text: str, config: tuple[Any, ...]) -> list[Any]:
    return list(parse(text, extraction_config=config, fallback_mode="no_fallback", parsing_timeout=_seconds()))


def _seconds() -> int | None:
    return _SECONDS if threading.current_thread() is threading.main_thread() else None
