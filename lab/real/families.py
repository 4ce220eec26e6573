r"""Three families of reasoning-gym: their questions, and worked solutions for the warm-up.

Every family has one long, fixed stream of distinct questions, and each use has its own stretch of it (``STRETCH``). No
answer is frequent, because a policy would learn to give it always. A solution reasons line by line and ends in \boxed{};
questions, answers and scorers are reasoning-gym's.
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
    """A data set of reasoning-gym, the size of its questions, and how to solve one."""

    name: str
    settings: Mapping[str, int]
    solve: Callable[[Mapping[str, Any]], Iterator[str]]
    """Metadata -> the lines of a solution, without the box."""

    def questions(self) -> Iterator[Entry]:
        """Distinct questions, at least a few thousand."""
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


def parts(made: Mapping[str, Any]) -> Iterator[str]:
    """products: the first factor times the tens and the ones of the second, and the sum."""
    first, second = map(int, made["expression"].split(" * "))
    tens, ones = first * (second - second % 10), first * (second % 10)
    yield f"{first} * {second - second % 10} = {tens}"
    yield f"{first} * {second % 10} = {ones}"
    yield f"{tens} + {ones} = {tens + ones}"


FAMILIES = {
    family.name: family
    for family in (
        Family("chain_sum", {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}, sums),
        Family("leg_counting", {"min_animals": 2, "max_animals": 4}, legs),
        Family("products", {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}, parts),
    )
}
STRETCH = {"heldout": 0, "train": 1_000, "warm-up": 5_000}
"""Where each use of a family's stream of questions begins."""


def record(family: Family, entry: Entry) -> dict[str, str]:
    """A line of a data set: ``question``, ``answer`` (the label of ``reward``), ``solution``."""
    label = {"answer": entry["answer"], "metadata": {"source_dataset": family.name}}
    return {"question": entry["question"], "answer": json.dumps(label), "solution": family.solution(entry)}


def records(family: Family, start: int, number: int) -> list[dict[str, str]]:
    """The lines of a stretch of the stream."""
    return [record(family, entry) for entry in itertools.islice(family.questions(), start, start + number)]
