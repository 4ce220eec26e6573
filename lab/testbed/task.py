"""The testbed's task: a two-term recurrence modulo 100, written out step by step.

A question such as ``f97+53?`` means: start from ``(u, v) = (97, 53)`` and make six steps (``f`` counts down to ``a``) of
``(u, v) <- (v, (u + v) mod 100)``; the operation is always ``+`` or always ``-``. A response has one line per step::

    f97+53 7+3=10 9+5+1=5 50     verbose: ones digit with carry, tens digit, result
    e53+50=03                    terse: the result alone
    ...
    \\boxed{5356}

The answer is the last two values as one number of four digits. The recurrence is invertible, so a single wrong value always
changes the answer; only several mistakes that cancel exactly can lead to a right one.

Demonstrations come from a writer with habits (``Habits``): careful when verbose, often wrong when terse, and too often terse
in some states. After some values it usually forgets the carry, so that the *most likely* response is wrong. Reinforcement
learning can fix that. Standard library only.
"""

import hashlib
import random
import re
from dataclasses import dataclass

MODULUS = 100
HELD_OUT_PARTS, PARTS = 16, 128
_QUESTION = re.compile(r"([a-z])(\d\d)([+-])(\d\d)\?")
_LINE = re.compile(r"([a-z])(\d\d)([+-])(\d\d)(?:=(\d\d)| (\d)([+-])(\d)=(\d)(\d) (\d)([+-])(\d)([+-])(\d)=(\d) (\d\d))")
_BOX = re.compile(r"\\boxed\{(\d{4})\}")


@dataclass(frozen=True, kw_only=True)
class Habits:
    """The habits of a writer. Rates are probabilities per step; digits are those of the second operand."""

    terse: float  # rate of terse steps in ordinary states
    hasty_ones: frozenset[int] = frozenset()  # the state is hasty if the ones digit is one of these
    hasty_terse: float = 0.0  # rate of terse steps in hasty states
    hasty_slip: float = 0.0  # rate of a result off by 1 or 10 in a terse step of a hasty state
    trap_tens: frozenset[int] = frozenset()  # the state is a trap if the tens digit is one of these and there is a carry
    trap_terse: float = 0.0  # rate of terse steps in traps
    trap_slip: float = 0.0  # rate of a forgotten carry in a terse step of a trap
    slip: float = 0.0  # rate of a result off by 1 or 10 in any other step


@dataclass(frozen=True, kw_only=True)
class Level:
    """A level of difficulty: chain lengths in steps (inclusive), and the habits of its base model."""

    min_steps: int
    max_steps: int
    habits: Habits


CAREFUL = Habits(terse=0.3)
LEVELS = {
    "main": Level(
        min_steps=7,
        max_steps=12,
        habits=Habits(
            terse=0.05,
            hasty_ones=frozenset({0, 5}),
            hasty_terse=0.65,
            hasty_slip=0.3,
            trap_tens=frozenset({7}),
            trap_terse=0.9,
            trap_slip=0.65,
            slip=0.005,
        ),
    ),
    "hard": Level(
        min_steps=9,
        max_steps=14,
        habits=Habits(
            terse=0.05,
            hasty_ones=frozenset({0, 2, 5, 7, 8}),
            hasty_terse=0.65,
            hasty_slip=0.4,
            trap_tens=frozenset({3, 7}),
            trap_terse=0.9,
            trap_slip=0.65,
            slip=0.005,
        ),
    ),
}


@dataclass(frozen=True)
class Question:
    """A parsed question: number of steps, the first two values (0 to 99), and the operation, ``+`` or ``-``."""

    steps: int
    u: int
    v: int
    op: str

    def __str__(self) -> str:
        return f"{_letter(self.steps)}{self.u:02d}{self.op}{self.v:02d}?"


def parse_question(text: str) -> Question:
    """Inverse of ``str(question)``. Raises ValueError for other texts."""
    match = _QUESTION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a question of this task: {text!r}")
    letter, u, op, v = match.groups()
    return Question(ord(letter) - ord("a") + 1, int(u), int(v), op)


def answer(question: str) -> str:
    """The label: the last two values as four digits, e.g. ``0357``."""
    q = parse_question(question)
    u, v = q.u, q.v
    for _ in range(q.steps):
        u, v = v, _apply(u, q.op, v)
    return f"{u:02d}{v:02d}"


def boxed(text: str) -> str | None:
    """The four digits of the last box in a response, or None."""
    found = _BOX.findall(text)
    return found[-1] if found else None


def is_heldout(question: str) -> bool:
    """Whether a question is held out, by a hash of its text: 1 in 8 is, and the splits are disjoint."""
    return hashlib.sha256(question.encode()).digest()[0] % PARTS < HELD_OUT_PARTS


def draw_question(rng: random.Random, min_steps: int, max_steps: int) -> str:
    """A random question of either split, uniform over lengths, values and operations."""
    steps = rng.randint(min_steps, max_steps)
    return str(Question(steps, rng.randrange(MODULUS), rng.randrange(MODULUS), rng.choice("+-")))


def draw_split(level: str, n: int, seed: int, *, heldout: bool) -> list[str]:
    """``n`` distinct questions of one split of a level, the same for the same seed.

    Raises ValueError if ``n`` exceeds half of the split.
    """
    settings = LEVELS[level]
    share = HELD_OUT_PARTS / PARTS if heldout else 1 - HELD_OUT_PARTS / PARTS
    room = int(share * 2 * MODULUS**2 * (settings.max_steps - settings.min_steps + 1))
    if n > room // 2:
        raise ValueError(f"{n} questions asked for, but at most {room // 2} can be drawn from this split of {level!r}")
    rng = random.Random(f"{level}/{heldout}/{seed}")
    questions: dict[str, None] = {}
    while len(questions) < n:
        question = draw_question(rng, settings.min_steps, settings.max_steps)
        if is_heldout(question) == heldout:
            questions[question] = None
    return list(questions)


@dataclass(frozen=True, slots=True)
class WrittenStep:
    """One line of a response: its ``kind`` of state (trap, hasty, ordinary), and how it was written."""

    kind: str
    terse: bool
    right: bool


def written_steps(response: str, habits: Habits) -> list[WrittenStep]:
    """The lines of a response that have the form of a step, each judged by its own operands."""
    found = []
    for line in response.split("\n"):
        if match := _LINE.fullmatch(line):
            u, op, v, terse = int(match[2]), match[3], int(match[4]), match[5] is not None
            work = "=" if terse else f" {scratch(u, op, v)} "
            right = line == f"{match[1]}{u:02d}{op}{v:02d}{work}{_apply(u, op, v):02d}"
            found.append(WrittenStep(_kind(u, op, v, habits), terse, right))
    return found


def demonstrate(question: str, habits: Habits, rng: random.Random) -> str:
    """A response by a writer with these habits. Mistakes propagate, as in real reasoning."""
    q = parse_question(question)
    u, v, lines = q.u, q.v, []
    for step in range(q.steps, 0, -1):
        terse, result = _write(u, q.op, v, habits, rng)
        work = "=" if terse else f" {scratch(u, q.op, v)} "
        lines.append(f"{_letter(step)}{u:02d}{q.op}{v:02d}{work}{result:02d}\n")
        u, v = v, result
    return "".join(lines) + f"\\boxed{{{u:02d}{v:02d}}}"


def scratch(u: int, op: str, v: int) -> str:
    """The written work of a verbose step, e.g. ``7+3=10 9+5+1=5``: carry (or borrow) and ones digit, then the tens digit."""
    carry = _carry(u, op, v)
    result = _apply(u, op, v)
    return f"{u % 10}{op}{v % 10}={carry}{result % 10} {u // 10}{op}{v // 10}{op}{carry}={result // 10}"


def wrong_steps(question: str, response: str) -> list[int]:
    """Indices (from 0) of the wrong steps: those whose line does not follow from the values *written* before it.

    A value that only inherits an earlier mistake is not wrong. Missing and extra lines are.
    """
    q = parse_question(question)
    lines = response.split("\\boxed")[0].split("\n")[:-1]
    wrong, u, v = list(range(len(lines), q.steps)), q.u, q.v
    for index, line in enumerate(lines):
        head = f"{_letter(q.steps - index)}{u:02d}{q.op}{v:02d}" if index < q.steps else None
        result = f"{_apply(u, q.op, v):02d}"
        if head is None or line not in (f"{head}={result}", f"{head} {scratch(u, q.op, v)} {result}"):
            wrong.append(index)
        match = _LINE.fullmatch(line)
        if match is not None:
            u, v = int(match[4]), int(match[5] or match[17])
        else:
            u, v = v, _apply(u, q.op, v)
    return sorted(wrong)


def _write(u: int, op: str, v: int, habits: Habits, rng: random.Random) -> tuple[bool, int]:
    """One step by the writer: (terse?, result)."""
    result, kind = _apply(u, op, v), _kind(u, op, v, habits)
    slipped = (result + rng.choice((1, -1, 10, -10))) % MODULUS
    if kind == "trap":
        terse = rng.random() < habits.trap_terse
        if terse and rng.random() < habits.trap_slip:
            return terse, _apply(result, "-" if op == "+" else "+", 10)
    elif kind == "hasty":
        terse = rng.random() < habits.hasty_terse
        if terse and rng.random() < habits.hasty_slip:
            return terse, slipped
    else:
        terse = rng.random() < habits.terse
    return terse, slipped if rng.random() < habits.slip else result


def _kind(u: int, op: str, v: int, habits: Habits) -> str:
    """The state of a step: trap, hasty or ordinary."""
    if _carry(u, op, v) and v // 10 in habits.trap_tens:
        return "trap"
    return "hasty" if v % 10 in habits.hasty_ones else "ordinary"


def _apply(u: int, op: str, v: int) -> int:
    return (u + v if op == "+" else u - v) % MODULUS


def _carry(u: int, op: str, v: int) -> int:
    return int(u % 10 + v % 10 > 9 if op == "+" else u % 10 < v % 10)


def _letter(steps: int) -> str:
    return chr(ord("a") + steps - 1)
