"""pass@N of a study: which answers count, and what is asked."""

import pytest

from lab.studies import pass_at_n

ANSWERS = [(1.0, 100), (1.0, 300), (0.0, 50), (0.0, 400)]


@pytest.mark.parametrize(
    ("limit", "n", "expected"),
    [
        (400, 1, 2 / 4),
        (400, 2, 1 - 1 / 6),  # of the 6 pairs, one holds neither right answer
        (200, 1, 1 / 4),  # the second is right and too long
        (200, 2, 3 / 6),
        (200, 4, 1.0),
        (99, 4, 0.0),
    ],
)
def test_an_answer_counts_when_it_is_right_and_short_enough(limit, n, expected):
    assert pass_at_n.passes(ANSWERS, limit, n) == pytest.approx(expected)


def test_pass_at_n_is_the_mean_over_questions_then_seeds():
    right, wrong = [(1.0, 10), (1.0, 10)], [(0.0, 10), (0.0, 10)]
    assert pass_at_n.table([[right, wrong], [right, right]], [10]) == {"10": {"1": 0.75, "2": 0.75}}


def test_epoch_by_epoch_both_methods_are_trained():
    made = pass_at_n.variants([1, 4])
    assert [v.name for v in made] == ["RPO, 1 epoch", "full path, 1 epoch", "RPO, 4 epochs", "full path, 4 epochs"]
    assert made[3].options == {"train.num_episodes": 4, "rpo.enable": "false"}
