"""Laws of the order of visits."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.draws import episode_order
from openrlhf_rpo.algo.visit_order import visit_order

SIZES = {"n": st.integers(1, 40), "episodes": st.integers(1, 5), "lag": st.integers(0, 50)}


@given(**SIZES)
def test_every_question_is_visited_once_an_episode(n, episodes, lag) -> None:
    assert Counter(visit_order(0, n, episodes, lag)) == dict.fromkeys(range(n), episodes)


@given(n=st.integers(1, 40), episodes=st.integers(1, 5), lag=st.integers(1, 50))
def test_a_question_comes_back_after_at_least_lag_other_visits(n, episodes, lag) -> None:
    order = visit_order(0, n, episodes, lag)
    for question in range(n):
        places = [i for i, q in enumerate(order) if q == question]
        assert all(b - a >= min(lag, n) for a, b in zip(places, places[1:], strict=False))


def test_without_a_lag_each_episode_is_a_pass_in_its_own_order() -> None:
    assert visit_order(7, 5, 2, 0) == episode_order(7, 0, 5) + episode_order(7, 1, 5)


def test_four_questions_two_visits_lag_two_by_hand() -> None:
    a, b, c, d = episode_order(7, 0, 4)
    assert visit_order(7, 4, 2, 2) == [a, b, a, c, b, d, c, d]


def test_once_under_way_one_visit_in_episodes_is_a_first_one() -> None:
    order, seen, first = visit_order(0, 200, 4, 8), set(), []
    for question in order:
        first.append(question not in seen)
        seen.add(question)
    assert sum(first[100:500]) == 100
