"""Which column is taken, and what a value is as text."""

from datetime import date, datetime
from decimal import Decimal

import pytest

from openrlhf_rpo.data.columns import ANSWER, QUESTION, choose, text
from openrlhf_rpo.errors import UsageError


@pytest.mark.parametrize(
    ("columns", "question", "answer"),
    [
        (["problem", "solution", "answer", "level"], "problem", "answer"),  # open-rs
        (["question", "answer"], "question", "answer"),  # GSM8K
        (["source", "problem", "solution"], "problem", "solution"),  # NuminaMath
        (["prompt", "reward_model.ground_truth"], "prompt", "reward_model.ground_truth"),  # DAPO
        (["Question", "Label"], "Question", "Label"),
    ],
)
def test_the_columns_of_well_known_data_are_guessed(columns, question, answer):
    assert choose("--question", None, QUESTION, columns) == question
    assert choose("--answer", None, ANSWER, columns) == answer


def test_a_named_column_wins_over_a_usual_name():
    assert choose("--question", "text", QUESTION, ["question", "text"]) == "text"


def test_an_unknown_column_is_refused_with_the_nearest_and_the_list():
    with pytest.raises(UsageError, match="--question problm: there is no such column; did you mean problem.*are a, problem"):
        choose("--question", "problm", QUESTION, ["a", "problem"])


def test_without_a_usual_name_the_option_is_asked_for():
    with pytest.raises(UsageError, match="--answer is missing, and no column has a usual name.*the columns are x, y"):
        choose("--answer", None, ANSWER, ["x", "y"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("  1+1? \n", "1+1?"),
        (42, "42"),
        (42.0, "42"),
        (2.5, "2.5"),
        (0.00001, "0.00001"),
        (1e23, "1" + "0" * 23),
        (Decimal("42.00"), "42"),
        (Decimal("0.50"), "0.50"),
        (date(2020, 1, 31), "2020-01-31"),
        (datetime(2020, 1, 31), "2020-01-31"),
        (datetime(2020, 1, 31, 12), "2020-01-31T12:00:00"),
        (Decimal("NaN"), None),
        (["42"], "42"),
        ([{"role": "user", "content": "1+1?"}], "1+1?"),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], None),
        (None, None),
        (float("nan"), None),
        ([], None),
    ],
)
def test_a_value_as_text(value, expected):
    assert text(value) == expected
