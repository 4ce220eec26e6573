"""Laws of the questions' identity and of the order in which a run meets them."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.rollout.questions import QuestionStream, question_id
from openrlhf_rpo.types import Question


def questions(n):
    return [Question(f"q{i}", f"prompt {i}", str(i)) for i in range(n)]


def stream(n=10, seed=42, episodes=3, position=0):
    made = QuestionStream(questions(n), seed, episodes)
    made.position = position
    return made


def ids(taken):
    return [q.question_id for q in taken]


def everything(stream, batch):
    """All full batches, and the rest."""
    batches = []
    while batch_ids := ids(stream.take(batch)):
        batches.append(batch_ids)
    return batches


SIZES = st.integers(1, 30)
SEEDS = st.integers(0, 2**31 - 1)


# ── Identity ──


def test_an_id_is_16_hex_digits_of_prompt_and_label():
    assert question_id("1+1?", "2") == "26078278038d181e"


@given(st.text(), st.text(), st.text())
def test_an_id_depends_on_prompt_and_label_alone(prompt, label, other):
    assert question_id(prompt, label) == question_id(prompt, label)
    assert (question_id(prompt, label) == question_id(prompt, other)) == (label == other)
    assert (question_id(prompt, label) == question_id(other, label)) == (prompt == other)


def test_prompt_and_label_cannot_be_confused():
    assert question_id("ab", "c") != question_id("a", "bc")


# ── The stream ──


@given(SIZES, SEEDS, st.integers(1, 4), st.data())
def test_with_batches_that_divide_it_every_episode_visits_every_question_once(n, seed, episodes, data):
    batch = data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
    batches = everything(stream(n, seed, episodes), batch)
    order = [i for b in batches for i in b]
    assert len(order) == n * episodes
    for episode in range(episodes):
        assert sorted(order[episode * n : (episode + 1) * n]) == sorted(f"q{i}" for i in range(n))


@given(SIZES, SEEDS, st.integers(1, 4), st.integers(1, 40))
def test_no_batch_holds_a_question_twice_and_only_the_last_is_short(n, seed, episodes, batch):
    batches = everything(stream(n, seed, episodes), batch)
    assert all(len(set(b)) == len(b) for b in batches)
    assert all(len(b) == batch for b in batches[:-1])


@given(st.integers(2, 30), SEEDS, st.data())
def test_what_an_episode_loses_at_its_turn_is_less_than_a_batch(n, seed, data):
    """A batch over the turn passes by what it has already met: never more than its share before the turn."""
    batch = data.draw(st.integers(1, n))
    visits = Counter(i for b in everything(stream(n, seed, episodes=2), batch) for i in b)
    assert 2 * n - sum(visits.values()) < batch
    assert set(visits) == {f"q{i}" for i in range(n)}


@given(SIZES, SEEDS)
def test_the_same_seed_gives_the_same_order(n, seed):
    assert ids(stream(n, seed).take(n)) == ids(stream(n, seed).take(n))


def test_another_seed_or_episode_gives_another_order():
    first = stream(30)
    episode_0, episode_1 = ids(first.take(30)), ids(first.take(30))
    assert episode_0 != episode_1
    assert episode_0 != ids(stream(30, seed=43).take(30))


@given(SIZES, SEEDS, st.integers(1, 3), st.integers(1, 12), st.integers(0, 6))
def test_a_resumed_stream_goes_on_as_if_it_had_never_stopped(n, seed, episodes, batch, steps):
    whole = stream(n, seed, episodes)
    for _ in range(steps):
        whole.take(batch)
    resumed = stream(n, seed, episodes, position=whole.position)
    assert everything(resumed, batch) == everything(whole, batch)


@given(SIZES, SEEDS, st.sets(st.integers(0, 29)))
def test_what_is_excluded_is_never_taken(n, seed, excluded):
    taken = ids(stream(n, seed, episodes=1).take(n, exclude={f"q{i}" for i in excluded}))
    assert sorted(taken) == sorted(f"q{i}" for i in range(n) if i not in excluded)


def test_at_the_end_of_the_data_fewer_come_and_then_none():
    s = stream(5, episodes=1)
    assert [len(s.take(4)), len(s.take(4)), len(s.take(4))] == [4, 1, 0]
    assert (s.remaining, s.position) == (0, 5)


def test_a_batch_larger_than_the_data_set_never_fills():
    assert len(stream(4, episodes=9).take(5)) == 4


@pytest.mark.parametrize(("position", "episode", "remaining"), [(0, 0, 30), (9, 0, 21), (10, 1, 20), (30, 3, 0)])
def test_position_tells_episode_and_rest(position, episode, remaining):
    s = stream(10, episodes=3, position=position)
    assert (s.episode, s.remaining) == (episode, remaining)


def test_taking_moves_the_position_past_what_was_passed_by():
    s = stream(3, episodes=2)
    first = ids(s.take(2))
    over_the_turn = s.take(2)
    assert len({*first, over_the_turn[0].question_id}) == 3
    assert s.position >= 4


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4), SEEDS, st.randoms())
def test_what_is_in_flight_at_its_turn_comes_later_and_nothing_is_lost(batch, batches, episodes, queue, seed, clock):
    """Batches are committed in order, at some moment before the next but ``queue`` is begun; a batch waits for questions."""
    s, out, times = stream(batch * batches, seed, episodes), [], Counter()
    for _ in range(batches * episodes):
        while out and (not s.has(batch, set().union(*out)) or len(out) > clock.randint(0, queue)):
            out.pop(0)
        taken = ids(s.take(batch, in_flight=set().union(*out)))
        assert len(set(taken)) == batch and not set(taken) & set().union(*out)
        out.append(set(taken))
        times.update(taken)
    assert set(times.values()) == {episodes} and len(times) == batch * batches
    assert (s.remaining, s.postponed) == (0, [])


def test_what_was_postponed_comes_first_and_a_resumed_stream_knows_it():
    s = stream(8, episodes=1)
    first, second = ids(stream(8, episodes=1).take(2))
    assert first not in ids(s.take(3, in_flight={first}))
    resumed = stream(8, episodes=1, position=s.position)
    resumed.postponed = list(s.postponed)
    assert ids(s.take(2))[0] == first == ids(resumed.take(2))[0] != second
