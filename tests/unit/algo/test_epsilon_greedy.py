"""Laws of the epsilon-greedy choice."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.epsilon_greedy import pick

GROUP = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 5)), min_size=1, max_size=8)


class Fixed(random.Random):
    """u is given."""

    def __init__(self, u):
        super().__init__(0)
        self.u = u

    def random(self):
        return self.u


def choose(rewards, lengths=None, candidates=None, epsilon=0.1, seed=0):
    return pick(
        rewards,
        lengths or [1] * len(rewards),
        range(len(rewards)) if candidates is None else candidates,
        epsilon,
        random.Random(seed),
    )


def test_worked_example():
    counts = Counter(choose([0.7, 0.9, 0.5], seed=seed) for seed in range(10_000))
    assert counts.keys() == {(0, "random"), (1, "best"), (2, "random")}
    assert abs(counts[1, "best"] - 1000) < 150
    assert abs(counts[0, "random"] - 4500) < 250 and abs(counts[2, "random"] - 4500) < 250


def test_u_equal_to_epsilon_takes_the_best():
    assert pick([0.0, 1.0], [1, 1], [0, 1], 0.3, Fixed(0.3)) == (1, "best")
    assert pick([0.0, 1.0], [1, 1], [0, 1], 0.3, Fixed(0.31)) == (0, "random")


@given(GROUP, st.integers(0, 100))
def test_epsilon_1_always_takes_the_best_then_the_shortest_then_the_first(group, seed):
    rewards, lengths = [r for r, _ in group], [n for _, n in group]
    index, why = choose(rewards, lengths, epsilon=1.0, seed=seed)
    assert why == "best"
    assert (-rewards[index], lengths[index], index) == min((-r, n, i) for i, (r, n) in enumerate(group))


@given(GROUP.filter(lambda group: len(group) > 1), st.integers(0, 100))
def test_epsilon_0_never_takes_the_best(group, seed):
    rewards, lengths = [r for r, _ in group], [n for _, n in group]
    best, _ = choose(rewards, lengths, epsilon=1.0)
    index, why = choose(rewards, lengths, epsilon=0.0, seed=seed)
    assert why == "random" and index != best


def test_ties_go_to_the_shorter_then_to_the_first():
    assert choose([1.0, 1.0, 1.0], [9, 4, 4], epsilon=1.0) == (1, "best")


@given(GROUP, st.data(), st.floats(0, 1), st.integers(0, 100))
def test_only_candidates_are_taken(group, data, epsilon, seed):
    candidates = data.draw(st.lists(st.sampled_from(range(len(group))), min_size=1, unique=True))
    index, _ = choose([r for r, _ in group], [n for _, n in group], candidates, epsilon, seed)
    assert index in candidates


@given(st.integers(0, 100))
def test_a_single_candidate_is_the_best(seed):
    assert choose([0.0, 1.0, 0.0], candidates=[2], epsilon=0.0, seed=seed) == (2, "best")
