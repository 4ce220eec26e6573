"""When drafts are taken to pay, and what they are taken to save."""

import numpy as np
import pytest

from openrlhf_rpo.rollout.drafts.pace import AGAIN, TRIALS, Pace


def run(pace, passes, seconds, requests=100):
    """Passes of so many requests, which take ``seconds[with drafts]`` a token; which of them had drafts."""
    had = []
    for _ in range(passes):
        had.append(pace.pays(requests))
        pace.add(requests, had[-1], 150 if had[-1] else 100, seconds[had[-1]] * (150 if had[-1] else 100))
    return had


def test_both_ways_are_tried_then_the_faster_one_is_taken():
    assert run(Pace(), 2 * TRIALS, {True: 1.0, False: 2.0}).count(True) == TRIALS
    for faster in (True, False):
        had = run(Pace(), 50 * AGAIN, {faster: 1.0, not faster: 2.0})[2 * TRIALS :]
        assert had.count(not faster) <= len(had) / AGAIN + 1


def test_when_the_other_way_becomes_the_faster_one_it_is_found():
    pace = Pace()
    run(pace, 20 * AGAIN, {True: 2.0, False: 1.0})
    assert run(pace, 400 * AGAIN, {True: 0.5, False: 1.0})[-AGAIN:].count(True) >= AGAIN - 1


def test_seconds_of_passes_without_drafts_are_known_from_those_that_were_timed():
    pace = Pace()
    pace.add(100, True, 150, 75.0)
    assert pace.plain_seconds(np.array([100])) is None
    pace.add(100, False, 100, 10.0)
    pace.add(10, False, 10, 1.0)
    assert pace.plain_seconds(np.array([200, 100, 55, 10, 1])) == pytest.approx(10 + 10 + 5.5 + 1 + 1)


def test_few_and_many_requests_are_timed_apart():
    pace = Pace()
    for _ in range(5):
        run(pace, 4 * TRIALS, {True: 2.0, False: 1.0}, requests=100)
        run(pace, 4 * TRIALS, {True: 1.0, False: 2.0}, requests=5)
    pace.add(100, True, 1, 1.0)  # away from the pass that tries the other way
    assert pace.pays(5) and not pace.pays(100)
