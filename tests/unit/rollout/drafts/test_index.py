"""What stored paths say next, held against a search of all places."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.rollout.drafts.index import ORDERS, PAD, PathIndex

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=20)


def ids(tokens):
    return np.array(tokens, np.int32)


def longest_match(paths, new):
    """The length of the longest match with the end of ``new`` (a path's start counts as a token), and what follows each."""
    found = []
    before = [PAD, *new]
    for path in paths:
        text = [PAD, *path]
        for end in range(1, len(text)):
            length = 0
            while length < min(end, len(before)) and text[end - 1 - length] == before[len(before) - 1 - length]:
                length += 1
            found.append((length, abs(end - 1 - len(new)), text[end:]))
    longest = max(length for length, *_ in found)
    nearest = min(far for length, far, _ in found if length == longest)
    return longest, [rest for length, far, rest in found if (length, far) == (longest, nearest)]


@given(st.lists(TOKENS, min_size=1, max_size=3), st.lists(st.integers(0, 3), max_size=12), st.integers(0, 5))
def test_a_draft_follows_the_longest_match_nearest_to_its_place(paths, new, most):
    longest, rests = longest_match(paths, new)
    draft = PathIndex([ids(path) for path in paths]).after(ids(new), most)
    assert draft in [rest[:most] for rest in rests] if longest >= min(ORDERS) else draft == []


def test_a_path_is_drafted_from_its_start_and_not_beyond_its_end():
    index = PathIndex([ids([5, 6, 7])])
    assert index.after(ids([]), 8) == [5, 6, 7]
    assert index.after(ids([5, 6]), 8) == [7]
    assert index.after(ids([5, 6, 7]), 8) == []
    assert index.after(ids([9]), 8) == []


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_paths_that_match_alike_the_newer_is_drafted(order):
    paths = [[1, 2, 3], [1, 2, 4]][::order]
    assert PathIndex([ids(path) for path in paths]).after(ids([1, 2]), 1) == [paths[0][2]]
