r"""The final answer of a worked solution, and the kinds of answers.

Two conventions: the last \boxed{...} (MATH, NuminaMath), and the text after the last ``####`` (GSM8K), where thousands lose
their commas.
"""

import re
from collections.abc import Callable, Sequence

from openrlhf_rpo.rewards.math import last_boxed

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = r"[-+]?\d+"
_KINDS = {
    "integer": re.compile(_NUMBER),
    "decimal": re.compile(r"[-+]?\d*\.\d+"),
    "fraction": re.compile(rf"{_NUMBER}/\d+|[-+]?\\[dt]?frac\{{{_NUMBER}\}}\{{\d+\}}"),
    "words": re.compile(r"(?:\\text\{)?[A-Za-z][A-Za-z ,.'-]+\}?"),
}


def after_hashes(text: str) -> str | None:
    """The text after the last ``####``, to the end of the line; None without one."""
    _, found, rest = text.rpartition("####")
    return _THOUSANDS.sub("", (rest.strip().splitlines() or [""])[0].strip()) if found else None


EXTRACTIONS: dict[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "gsm8k": after_hashes,
    "none": lambda text: text,
}


def guess_extraction(texts: Sequence[str]) -> str:
    """The convention that more than half of the texts follow, or "none".

    It holds for all texts: otherwise a solution without a final answer would be taken for an answer.
    """
    for name in ("boxed", "gsm8k"):
        if 2 * sum(EXTRACTIONS[name](text) is not None for text in texts) > len(texts):
            return name
    return "none"


def kind(answer: str) -> str:
    """integer, decimal, fraction, words (two letters or more), or expression, by the form inside $...$."""
    bare = answer.strip().strip("$").strip()
    return next((name for name, form in _KINDS.items() if form.fullmatch(bare)), "expression")
