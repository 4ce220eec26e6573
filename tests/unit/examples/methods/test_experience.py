"""Right answers are stored, replayed but for their last token, and trained on whole."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.methods.experience import Experience
from openrlhf_rpo.algo.methods import Cut, Scored, Stored
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import Path


@given(st.integers(1, 50), st.sampled_from(["stop", "length"]))
def test_all_but_the_last_token_of_a_stored_answer_is_kept_and_carries_loss(length, finish):
    path = Path("q", (1,) * length, (-1.0,) * length, finish, 1.0, 1.0)
    assert Experience().cuts(Cut((path, path), random.Random(0))) == (1, 1)
    assert Experience().loss_from([length - 1, length - 1]) == [0, 0]


def test_each_sample_replays_an_answer_of_its_own_in_turn():
    paths = {slot: Path("q", (slot,) * 5, None, "stop", 1.0, 1.0, slot=slot) for slot in (0, 2)}
    assert [path.slot for path in Experience().paths(Stored(paths), 3)] == [0, 2, 0]
    assert Experience().paths(Stored({}), 3) == ()


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8), st.booleans())
def test_right_answers_alone_are_stored_and_a_question_without_one_starts_bare(scores, has_path):
    lengths = (4,) * len(scores)
    choice = Experience().store(Scored(tuple(scores), tuple(scores), lengths, has_path, random.Random(0)))
    assert list(choice.samples.values()) == [i for i, score in enumerate(scores) if score > 0]
    assert list(choice.samples) == list(range(len(choice.samples)))
    assert choice.start_bare == (has_path and not any(scores))


def test_answers_that_are_compared_are_refused():
    def check(baseline: str, level: str = "off") -> None:
        rpo = SimpleNamespace(advantage=SimpleNamespace(baseline=baseline))
        algo = SimpleNamespace(advantage=SimpleNamespace(is_correction_level=level))
        Experience().check_run(SimpleNamespace(rpo=rpo, algo=algo))

    check("zero")
    with pytest.raises(UsageError, match="add --rpo.preset raft"):
        check("estimator")
    with pytest.raises(UsageError, match="add --algo.advantage.is_correction_level off"):
        check("zero", "token")
