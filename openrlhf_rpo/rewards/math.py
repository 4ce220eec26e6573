r"""Accuracy of a mathematical answer: 1.0 if it equals the label, else 0.0.

The answer is the content of the last \boxed{...} in the response (of several with a comma or "and" between them, of all)
or, without a box, the number, formula or choice (A to J) in the sentence after the last "answer is", "answer:", <answer>
or, in the last line, ####. A number elsewhere in the text does not count, so a truncated response is not rewarded by
luck. Answers are equal if their text is, or if math-verify (https://github.com/huggingface/Math-Verify) says so:
\frac{84}{2} equals 42. What it misreads is rewritten for it: 12\,345, which it would multiply, and 4.5e33, which is then
read both ways, as e may be Euler's number. It compares six decimals, so numbers below a thousandth must also be within a
thousandth of each other. A date, a time, a word in capitals and feet with inches must be the same text: math-verify would
calculate with them.

Degenerate cases: no answer, an empty or unclosed box, or an expression that cannot be parsed or compared in time
(\boxed{9^{9^{9}}}) gives 0.0. With a label that cannot be parsed only the same text in the box gives 1.0; ``unparsable``
finds such labels before a run starts. (The reference then gives every response 1.0.)
"""

import itertools
import re
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Eq, Expr, Rational

_BOX = re.compile(r"\\boxed\s*\{")
# 12\,345 and 12 345 678; not 1.234 567
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;: ]|[~ \u00a0\u2009\u202f])\d{3})+(?!\d)")
_BETWEEN = re.compile(r"\$?\s{0,3}(?:,|(?:,\s?)?\band\b)\s{0,3}\$?")  # \boxed{1} and \boxed{-5}
_DIGITS, _POWER = r"(\d+(?:\.\d*)?|\.\d+)", r"([+-]?\d{1,4})"
# Every repetition is bounded, so that no response takes long.
_ANNOUNCED = re.compile(
    r"(?i)(?:\banswer(?:\s{1,9}(?:to|for)\b[^.:\n]{0,80}?)?"
    r"(?:\s{1,9}(?:is|equals|should be|must be)\b|[*\s]{0,4}[:=]|[* ]{0,4}\n)"
    r"|<answer>|####(?=.{0,99}\s{0,9}\Z))[\s*:]{0,9}+"
    r"(?:(?:thus|therefore|hence|then|simply|just|exactly|equal to)\b[\s,:]{0,9})?(?!not\b)(?:[A-Za-z]\w{0,19}\s?=\s?)?"
)
_FORMULA = re.compile(r"(?s)\$\$(.{1,300}?)\$\$|\$((?:[^$.]|\.(?!\s)){1,300})\$|\\\((.{1,300}?)\\\)|\\\[(.{1,300}?)\\\]")
_FURTHER = re.compile(r"\s{0,3}(?:,\s?(?:and|or)?|and|or)\s{1,3}(?=[$\\])")  # between $2$ and $3$
_PROSE = re.compile(r"[a-z]{2,} [a-z]{2,}")  # no formula
# 42 and about 42 apples and 42, as 6 * 7 is, and 3 L; not 2x, 6*7=42, 2 or 3
_BEFORE = re.compile(r"(?:\s{0,3}[A-Za-z][A-Za-z'-]{1,30}\s){0,9}\s{0,3}[€£¥]?")
_NUMBER = re.compile(
    r"\s*[-+]?(?:\d[\d,]{0,99}\.?\d{0,99}|\.\d{1,99})(?:/\d{1,99})?\s?\\?%?(?:[\s.)]*\Z|\s+\(|[,;:]?\s+"
    r"(?!(?:or|and|times|plus|minus|over|divided)\b)(?:[A-Za-z]{2}|a\s|[A-Z]\s*\Z))"
)
# Dates, words in capitals (an order, ACB), 5 feet 3 inches: to math-verify differences, products, and 5.
_WORDS = re.compile(r"\d{4}-\d\d?-\d\d?|[A-Z]{2,}|\d+[A-Za-z]{2,}\d+[A-Za-z]{2,}")
_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d)?")  # or a ratio
_CHOICE = re.compile(r"\s*\(?[A-J]\)?\s*")
_SENTENCE = re.compile(r".{1,300}?(?=[.;!?](?:\s|\Z)|</|\n|\Z)|.{1,300}")
_STEPS = re.compile(r"1[.)][ \t]{1,9}[A-Z*]")  # the first of a list
_ABOUT = re.compile(r"^\s*\\(?:approx|sim)(?![a-zA-Z])")
_EXPONENT = re.compile(rf"(?<![\w.\\]){_DIGITS}[eE]{_POWER}(?![\w.])")
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
    bare = _bare(label)
    if _WORDS.fullmatch(bare) or _TIME.fullmatch(bare):
        said = _bare(box) if box is not None else next(filter(_is_text, map(_bare, _sentences(response))), "")
        if _WORDS.fullmatch(bare) or _TIME.fullmatch(said):
            return float(said.upper() == bare.upper())
    answer = _said(response) if box is None else _read(box.removesuffix(".")) if box else []
    gold = _gold(label) if answer else ()
    return float(any(_equal(*pair) for pair in itertools.product(gold, answer)))


def _bare(text: str) -> str:
    """Without text commands, spaces and signs around it."""
    return re.sub(r"\s|\\[()]", "", re.sub(r"\\(?:text|mathrm)(?:bf|it)?\{([^{}]{0,99})\}", r"\1", text)).strip("$().")


def _is_text(said: str) -> bool:
    return bool(re.search(r"\d", said) or _WORDS.fullmatch(said))


def parses(label: str) -> bool:
    """Whether math-verify understands ``label``, with or without $...$ or \\boxed{...} around it."""
    return bool(_gold(label))


def unparsable(labels: Iterable[str]) -> list[int]:
    """The positions of labels that math-verify cannot parse, so that only the same text matches them."""
    return [i for i, label in enumerate(labels) if not parses(label)]


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, stripped; None without a box, "" if it is empty or never closes.

    Of boxes with a comma or "and" between them, \boxed{1} and \boxed{-5}, the contents: "1, -5".
    """
    contents: list[str] = []
    behind = len(text)
    for match in reversed(list(_BOX.finditer(text))):
        end = _closing(text, match.end())
        if end is None or (contents and not _BETWEEN.fullmatch(text, end + 1, behind)):
            break
        contents.append(text[match.end() : end].strip())
        behind = match.start()
    else:
        if not contents:
            return None
    return ", ".join(filter(None, dict.fromkeys(reversed(contents))))


def _closing(text: str, start: int) -> int | None:
    """The place of the brace that closes the one before ``start``."""
    depth, escaped = 1, False
    for i in range(start, len(text)):
        if text[i] in "{}" and not escaped:
            depth += 1 if text[i] == "{" else -1
        if depth == 0:
            return i
        escaped = text[i] == "\\" and not escaped  # not after \\, which ends a line
    return None


class _Unread(Exception):
    pass


def _gold(label: str) -> tuple[Any, ...]:
    try:
        return _meanings(label)
    except _Unread:  # is not cached: on a busy machine the next parse may be in time
        return ()


@lru_cache(maxsize=4096)  # a group's samples share their label
def _meanings(label: str) -> tuple[Any, ...]:
    found = (_read(label) or _parse(label, _ANYWHERE)) if label.strip() else ()
    if not found:
        raise _Unread
    return tuple(found)


def _read(expression: str, form: str = "\\boxed{{{}}}") -> list[Any]:
    """What an answer or a label may mean."""
    plain = _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), _ABOUT.sub("", expression))
    texts = dict.fromkeys((plain, _EXPONENT.sub(_power, plain)))
    return [meaning for text in texts for meaning in _parse(form.format(text), _ANSWER)]


def _power(found: re.Match[str]) -> str:
    return f"{found[1]} \\times 10^{{{int(found[2])}}}"


def _said(response: str) -> list[Any]:
    """What the last answer that is announced outside a box may mean."""
    for found, rest in _announced(response):
        if formulas := _formulas(rest):
            return _read(", ".join(formulas))
        said = _SENTENCE.match(rest)
        if said is None or "\n" in found and _STEPS.match(rest):
            continue
        text = _plain(said[0])
        if _CHOICE.fullmatch(text):
            return _read(text.strip(" ()"))
        if re.search(r"[\d$\\]", said[0]):  # else it announces nothing: "the answer is right"
            number = _BEFORE.sub("", text, count=1)
            return _read(number, "The final answer is {}") if _NUMBER.match(number) else _read(text)
    return []


def _announced(response: str) -> Iterator[tuple[str, str]]:
    """(announcement, what follows it), the last first."""
    for found in reversed(list(_ANNOUNCED.finditer(response))[-5:]):
        yield found[0], response[found.end() : found.end() + 400]


def _sentences(response: str) -> Iterator[str]:
    """What is said after each announcement, the last first."""
    matches = (_SENTENCE.match(rest) for _, rest in _announced(response))
    return (_plain(said[0]) for said in matches if said)


def _plain(said: str) -> str:
    """Without bold type and an amount's sign."""
    return re.sub(r"\*\*|\\?\$", "", said)


def _formulas(text: str) -> list[str]:
    """The formulas that a text begins with, without their signs; not "$18, which is $3 more"."""
    formulas = []
    while (found := _FORMULA.match(text)) and not _PROSE.search(found[0]):
        formulas.append(next(filter(None, found.groups())))
        text = text[found.end() :]
        further = _FURTHER.match(text)
        text = text[further.end() :] if further else ""
    return formulas


def _equal(gold: Any, answer: Any) -> bool:
    if not verify(gold, answer, timeout_seconds=_seconds()):
        return False
    one, other = _small(gold), _small(answer)
    return one is None or other is None or bool(abs(one - other) <= abs(one) / 1000)


def _small(meaning: Any) -> Any:
    """The value of a number below a thousandth; None for anything else."""
    value = meaning.rhs if isinstance(meaning, Eq) else meaning
    if not isinstance(value, Expr) or value.free_symbols:
        return None
    value = value.evalf()
    return value if value.is_real and abs(value) < Rational(1, 1000) else None


def _parse(text: str, config: tuple[Any, ...]) -> list[Any]:
    return list(parse(text, extraction_config=config, fallback_mode="no_fallback", parsing_timeout=_seconds()))


def _seconds() -> int | None:
    return _SECONDS if threading.current_thread() is threading.main_thread() else None
