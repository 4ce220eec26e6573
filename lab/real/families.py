r"""Four families of reasoning-gym: their questions, and worked solutions for the warm-up.

Every family has one endless stream of distinct questions, the same for everybody, and each use has its own stretch of it
(``STRETCH``). A solution reasons line by line and ends in \boxed{}; questions, answers and scorers are reasoning-gym's.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]
"""A question of reasoning-gym: ``question``, ``answer``, and ``metadata`` with what it was made from."""


@dataclass(frozen=True)
class Family:
    """A data set of reasoning-gym, its size of questions, and how one is solved."""

    name: str
    settings: Mapping[str, int]
    solve: Callable[[Mapping[str, Any]], Iterator[str]]
    """Metadata -> the lines of a solution, without the box."""

    def questions(self) -> Iterator[Entry]:
        """Distinct questions without end."""
        from lab.real import add_packages

        add_packages()
        from reasoning_gym import create_dataset

        seen, data = set(), create_dataset(self.name, seed=0, size=1, **self.settings)
        for index in itertools.count():
            entry = data[index]
            if entry["question"] not in seen:
                seen.add(entry["question"])
                yield entry

    def solution(self, entry: Entry) -> str:
        """A worked solution that ends in the boxed answer."""
        return "\n".join([*self.solve(entry["metadata"]), f"\\boxed{{{entry['answer']}}}"])


def sums(made: Mapping[str, Any]) -> Iterator[str]:
    """chain_sum: the terms one after the other."""
    first, *rest = made["expression"].split()
    total = int(first)
    for sign, term in zip(rest[::2], map(int, rest[1::2]), strict=True):
        result = total + term if sign == "+" else total - term
        yield f"{total} {sign} {term} = {result}"
        total = result


def legs(made: Mapping[str, Any]) -> Iterator[str]:
    """leg_counting: the legs of each animal, and the sum so far."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    total = 0
    for animal, number in made["animals"].items():
        own = number * ANIMALS[animal]
        yield f"{number} {animal}: {number} * {ANIMALS[animal]} = {own}, {total} + {own} = {total + own}"
        total += own


def letters(made: Mapping[str, Any]) -> Iterator[str]:
    """letter_counting: each word spelled, its count, and the sum so far."""
    total = 0
    for word in made["span"]:
        own = word.lower().count(made["target_letter"])
        total += own
        yield f"{' '.join(word.lower())}: {own}, {total}"


def euclid(made: Mapping[str, Any]) -> Iterator[str]:
    """gcd: Euclid's algorithm, a division a line."""
    large, small = sorted(made["numbers"], reverse=True)
    while small:
        yield f"{large} = {large // small} * {small} + {large % small}"
        large, small = small, large % small


FAMILIES = {
    family.name: family
    for family in (
        Family("chain_sum", {"min_terms": 2, "max_terms": 4, "min_digits": 2, "max_digits": 2}, sums),
        Family("leg_counting", {"min_animals": 2, "max_animals": 4}, legs),
        Family("letter_counting", {"min_words": 2, "max_words": 4}, letters),
        Family("gcd", {"min_value": 10, "max_value": 300}, euclid),
    )
}
STRETCH = {"heldout": 0, "train": 1_000, "warm-up": 10_000}
"""Where each use of a family's stream of questions begins."""


def record(family: Family, entry: Entry) -> dict[str, str]:
    """A line of a data set: ``question``, ``answer`` (the label of ``reward``), ``solution``."""
    label = {"answer": entry["answer"], "metadata": {"source_dataset": family.name}}
    return {"question": entry["question"], "answer": json.dumps(label), "solution": family.solution(entry)}


def records(family: Family, start: int, number: int) -> list[dict[str, str]]:
    """The lines of a stretch of the stream."""
    return [record(family, entry) for entry in itertools.islice(family.questions(), start, start + number)]
