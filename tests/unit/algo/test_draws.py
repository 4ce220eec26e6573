"""Laws of the keyed draws."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.draws import episode_order, keyed_generator, request_seed

ROOT = str(Path(__file__).parents[3])
SEED = st.integers(0, 2**32)
STEP = st.integers(-1, 10_000)
TEXT = st.text(max_size=20)


@given(SEED, STEP, TEXT, st.sampled_from(["cut", "fresh", "update", "order"]))
def test_equal_keys_give_equal_draws(seed, step, question_id, purpose):
    first, second = (keyed_generator(seed, step, question_id, purpose) for _ in range(2))
    assert [first.random() for _ in range(3)] == [second.random() for _ in range(3)]


def test_every_part_of_the_key_matters():
    keys = [(1, 2, "q", "cut"), (2, 2, "q", "cut"), (1, 3, "q", "cut"), (1, 2, "r", "cut"), (1, 2, "q", "fresh")]
    assert len({keyed_generator(*key).random() for key in keys}) == len(keys)


def test_parts_of_the_key_do_not_run_into_each_other():
    assert keyed_generator(1, 12, "3", "cut").random() != keyed_generator(11, 2, "3", "cut").random()
    assert request_seed(1, 2, "q", 11) != request_seed(1, 2, "q1", 1)


def test_another_process_with_another_string_hash_draws_the_same():
    program = (
        "from openrlhf_rpo.algo.draws import *;"
        "print(keyed_generator(7, 3, 'q', 'cut').random(), request_seed(7, 3, 'q', 1), episode_order(7, 0, 5))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ROOT},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = f"{keyed_generator(7, 3, 'q', 'cut').random()} {request_seed(7, 3, 'q', 1)} {episode_order(7, 0, 5)}\n"
    assert printed == {here}


def test_draws_do_not_change_between_releases():
    """A cache is resumed with a later release, too."""
    assert keyed_generator(42, 1, "q", "cut").randint(0, 10**6) == 617174
    assert request_seed(42, 1, "q", 0) == 2091259414
    assert episode_order(42, 0, 8) == [0, 5, 7, 3, 6, 4, 1, 2]


@given(SEED, STEP, TEXT, st.integers(0, 64))
def test_request_seeds_fit_the_engine(seed, step, question_id, sample_index):
    assert 0 <= request_seed(seed, step, question_id, sample_index) < 2**31


def test_samples_of_a_group_have_different_seeds():
    assert len({request_seed(42, 1, "q", i) for i in range(64)}) == 64


@given(SEED, st.integers(0, 50), st.integers(0, 200))
def test_an_episode_visits_every_question_once(seed, episode, n):
    assert sorted(episode_order(seed, episode, n)) == list(range(n))


def test_episodes_differ_in_order():
    assert episode_order(42, 0, 50) != episode_order(42, 1, 50)
