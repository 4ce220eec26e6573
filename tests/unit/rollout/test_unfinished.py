"""Which groups a step waits for, and what it goes on with."""

import math

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.rollout.requests import Generated, GeneratedGroup
from openrlhf_rpo.rollout.unfinished import begin, count, go_on, shortened, tail
from openrlhf_rpo.types import UNKNOWN, Part, Prefix, Sample


def made(n, reason="stop"):
    return Generated(tuple(range(n)), (-1.0,) * n, reason)


def test_worked_example():
    """Of four groups two are wanted: those of at most 7 tokens. The others are cut to 7, also the one that has ended."""
    limit, waits = tail([9, 7, math.inf, 3], 2)
    assert (limit, waits) == (7, [True, False, True, False])
    assert shortened(made(9), limit) == made(7, "unfinished") and shortened(made(7), limit) == made(7)


def test_of_groups_as_long_as_each_other_the_first_are_done():
    assert tail([5, 5, 5], 2) == (5, [False, False, True])


def test_what_waits_has_at_least_a_token():
    assert tail([0, math.inf], 1) == (1, [False, True])


def test_when_all_are_wanted_none_waits():
    assert tail([5, 9], 2) == (0, [False, False]) == tail([5, 9], 3)


def test_only_unfinished_samples_go_on():
    first = go_on(begin([Prefix((1, 2)), Prefix()]), [made(3, "unfinished"), made(2)], 5)
    assert [s.finish_reason for s in first] == ["unfinished", "stop"]
    second = go_on(first, [made(4, "length")], 6)
    assert [(len(s.prefix), len(s.response_ids), s.finish_reason) for s in second] == [(2, 7, "length"), (0, 2, "stop")]
    assert tuple(second[0].response_log_probs) == (-1.0,) * 7 and count(second) == 9


def test_every_token_is_of_the_policy_that_generated_it():
    begun = begin([Prefix((1, 2)), Prefix(), Prefix()])
    for version, sizes in ((5, (3, 4, 0)), (5, (1, 0)), (6, (2, 0))):
        new = [made(n, "stop" if n == 4 else "unfinished") for n in sizes]
        begun = go_on(begun, new, version)
    assert [sample.parts for sample in begun] == [((5, 4), (6, 2)), ((5, 4),), ()]


def test_tokens_of_an_earlier_version_of_the_package_stay_unknown():
    stored = Sample(Prefix(), (7, 8), (-1.0, -1.0), "unfinished")
    [sample] = go_on([stored], [made(3)], 6)
    assert sample.parts == (Part(UNKNOWN, 2), Part(6, 3))


lengths = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=8)


@given(lengths, st.integers(1, 8), st.randoms())
def test_which_groups_are_done_does_not_depend_on_when_the_others_were_stopped(groups, enough, clock):
    """An engine stops a sample somewhere behind the longest wanted one; the outcome is the same as if none was stopped."""
    whole = [max(group) for group in groups]
    limit, waits = tail(whole, enough)
    stopped = [
        GeneratedGroup([made(n) if n <= limit else _stopped(n, clock.randint(limit, n)) for n in group]) for group in groups
    ]
    again, waits_again = tail([group.longest for group in stopped], enough)
    assert (again, waits_again) == (limit, waits)
    for group, late, lengths in zip(stopped, waits, groups, strict=True):
        if late:
            assert [shortened(g, limit) for g in group.samples] == [shortened(made(n), limit) for n in lengths]


def _stopped(n, at):
    return made(n) if at == n else made(at, "unfinished")
