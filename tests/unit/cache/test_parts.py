"""Which policy sampled which tokens of a path, stored as text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.cache.columns import LARGEST, parts_of, parts_text
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.types import UNKNOWN, CacheDecision, Part, StepRecord

PARTS = st.lists(st.builds(Part, st.integers(UNKNOWN, LARGEST), st.integers(1, LARGEST)), max_size=6).map(tuple)


def test_worked_example():
    parts = (Part(UNKNOWN, 40), Part(12, 340), Part(13, 20))
    assert parts_text(parts, 400) == "-1:40 12:340 13:20"
    assert parts_of("-1:40 12:340 13:20") == parts
    assert parts_text((), 400) == "" and parts_of("") == ()


@given(PARTS)
def test_parts_come_back_as_they_were(parts):
    assert parts_of(parts_text(parts, sum(n for _, n in parts))) == parts


@pytest.mark.parametrize(
    "text",
    [
        *("0:0", "-2:4", "-0:4", "1:-4", "01:4", "1:04", "2147483648:4", "1:2147483648", "1:" + "9" * 5000),
        *("1", "1:", ":4", "1:4:5", "1,4", "1:4  2:5", " 1:4", "1:4 ", "1:4\n", "1:4\t2:5", "1.0:4", "x:4", "\u0661:4"),
        "1:1 " * 300_000 + "1:1",
    ],
    ids=lambda text: repr(text)[:24],
)
def test_a_text_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="the parts"):
        parts_of(text)


def test_a_stored_path_keeps_its_parts(cache, path, visit):
    parts = (Part(0, 2), Part(3, 1))
    first = path("q", (1, 2, 3), step=1, parts=parts)
    others = (path("q", (4,), step=1, slot=1, parts=(Part(3, 1),)), path("q", (5,), step=1, slot=2))
    cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(first, visit("q", 1), others)])
    assert [cache.slots(["q"])["q"][slot].parts for slot in range(3)] == [parts, ((3, 1),), ()]
    assert cache.paths(["r"])["r"].parts == () and cache.verify() == []


@pytest.mark.parametrize(
    ("parts", "said"),
    [(((0, 4),), "parts of 4 of 3 tokens"), (((0, 0), (1, 3)), "the parts '0:0 1:3'"), (((-7, 3),), "the parts '-7:3'")],
)
def test_parts_that_are_not_of_the_path_are_not_stored(cache, path, visit, parts, said):
    wrong = replace(path("q", step=1), parts=tuple(Part(*part) for part in parts))
    with pytest.raises(CacheError, match=f"the path of question q cannot be stored: {said}"):
        cache.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(wrong, visit("q", 1))])
    assert cache.latest_step == 0
