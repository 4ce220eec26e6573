"""Laws of parts, held against one version per token."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.parts import extended, head, joined
from openrlhf_rpo.types import UNKNOWN, Part

VERSIONS = st.lists(st.sampled_from((UNKNOWN, 0, 1, 2)), max_size=12)


def of(versions):
    """The parts of tokens whose versions are given one by one."""
    return tuple(Part(version, len(list(same))) for version, same in groupby(versions))


def test_worked_example():
    """The one of the module's docstring."""
    kept = head((Part(0, 6),), 4)
    response = extended(extended((), 8, 2), 9, 5)
    assert joined(kept, response) == ((0, 4), (8, 2), (9, 5))


@given(VERSIONS, st.sampled_from((0, 1)), st.integers(0, 5))
def test_tokens_of_the_same_policy_are_one_part_and_none_change_nothing(versions, version, n):
    assert extended(of(versions), version, n) == of(versions + [version] * n)


@given(VERSIONS, st.integers(0, 15))
def test_a_head_is_of_as_many_tokens_and_what_is_not_known_is_unknown(versions, n):
    assert head(of(versions), n) == of((versions + [UNKNOWN] * n)[:n])
    assert head((), n) == ((Part(UNKNOWN, n),) if n else ())


@given(VERSIONS, VERSIONS)
def test_two_stretches_are_joined_where_they_meet(first, second):
    assert joined(of(first), of(second)) == of(first + second)
