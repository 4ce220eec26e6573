r"""Accuracy of a mathematical answer: 1.0 when it equals the label, 0.0 otherwise.

The answer is what stands in the last \boxed{...} of the response; without a box, what follows an anchor such as
"the final answer is". A number that merely occurs in the text is no answer, so a truncated response is not rewarded
by luck. Equality is exact text or, failing that, math-verify's (https://github.com/huggingface/Math-Verify):
\frac{84}{2} equals 42.

Degenerate cases: no answer, an empty box, an unclosed box or an expression that cannot be parsed or compared in time
(\boxed{9^{9^{9}}}) are 0.0; so is everything under a label that cannot be parsed, except the very same text in the
box, and ``unparsable`` finds those labels before a run starts. (The reference gives 1.0 to every response then.)
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
_SECONDS = 5  # for one parse or comparison, in whole seconds


def math_reward(response: str, label: str) -> float:
    """1.0 if the answer in ``response`` equals ``label``, else 0.0. May be called from any thread.

    Outside the main thread math-verify cannot interrupt itself (it needs ``signal.alarm``): the caller bounds it.
    """
    box = last_boxed(response)
    if box and box == label.strip():
        return 1.0
    if box == "":
        return 0.0
    answer = _parse(response if box is None else _boxed(box), _ANSWER)
    gold = _gold(label) if answer else ()
    return float(bool(gold) and verify(list(gold), answer, timeout_seconds=_seconds()))


def parses(label: str) -> bool:
    """Whether math-verify understands ``label``, with or without $...$ or \\boxed{...} around it."""
    return bool(_gold(label))


def unparsable(labels: Iterable[str]) -> list[int]:
    """The positions of the labels that no differently written answer can ever match."""
    return [i for i, label in enumerate(labels) if not parses(label)]


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{...} holds, stripped; None without a box, "" when it is empty or never closes."""
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
