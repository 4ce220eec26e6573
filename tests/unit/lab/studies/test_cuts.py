"""Where a study cuts."""

import argparse

import pytest

from lab.studies.cuts import parse_cut


@pytest.mark.parametrize(
    ("text", "length", "ended", "tokens"),
    [
        ("25%", 10, True, 3),
        ("50%", 10, True, 5),
        ("100%", 10, True, 10),
        ("0%", 10, True, 1),  # the end token goes, or nothing could be generated
        ("0%", 10, False, 0),
        ("1%", 300, True, 3),
        ("30%", 10, True, 3),  # 0.3 * 10 is 3.0000000000000004 in a float
        ("7", 10, True, 7),
        ("300", 10, True, 10),
    ],
)
def test_tokens_that_are_lost(text, length, ended, tokens):
    assert parse_cut(text).tokens(length, ended) == tokens


@pytest.mark.parametrize("text", ["", "half", "1.5", "101%", "-1", "-1%", "nan%"])
def test_what_is_no_cut_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_cut(text)
