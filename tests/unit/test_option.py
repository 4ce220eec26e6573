"""Laws of options: bounds and parsing."""

import argparse
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.errors import OptionError
from openrlhf_rpo.option import (
    AT_LEAST_ONE,
    FINITE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_ONE,
    Bounds,
    add_option,
    check_bounds,
    option,
    options_of,
    parse_amount,
    parse_bool,
    value_type,
)


@given(st.sampled_from([FINITE, SHARE, SHARE_BELOW_ONE, POSITIVE, AT_LEAST_ONE]), st.sampled_from([math.nan, math.inf]))
def test_no_bounds_admit_what_is_not_finite(bounds, value):
    assert not bounds.admit(value) and not bounds.admit(-value)


def test_the_ends_belong_to_the_range_unless_they_are_open():
    assert SHARE.admit(0) and SHARE.admit(1) and not SHARE.admit(1.01)
    assert SHARE_BELOW_ONE.admit(0) and not SHARE_BELOW_ONE.admit(1)
    assert not POSITIVE.admit(0) and POSITIVE.admit(1e-9)


def test_bounds_say_what_they_admit():
    assert str(SHARE_BELOW_ONE) == "at least 0 and below 1"
    assert str(POSITIVE) == "above 0" and str(FINITE) == "any finite number"
    assert str(Bounds(0, 1, (True, False))) == "above 0 and at most 1"


@dataclass(frozen=True)
class Group:
    share: float = option(0.5, "a share", bounds=SHARE)
    limit: int | None = option(None, "a limit", bounds=AT_LEAST_ONE)
    name: str = option("a", "a name", choices=("a", "b"))
    on: bool = option(False, "whether")
    other: int = 3  # no option


def test_options_are_the_fields_that_say_so():
    assert list(options_of(Group)) == ["share", "limit", "name", "on"]


def test_a_number_out_of_its_bounds_is_refused_by_the_options_name_and_none_may_stay_none():
    names = {name: f"group.{name}" for name in options_of(Group)}
    check_bounds(Group(), names)
    for changes, message in (({"share": 1.5}, "share 1.5: at least 0 and at most 1"), ({"limit": 0}, "limit 0: at least 1")):
        with pytest.raises(OptionError, match=rf"^--rpo.group.{message}$"):
            check_bounds(Group(**changes), names)


def test_a_value_on_the_command_line_is_of_its_fields_type():
    parser = argparse.ArgumentParser()
    for name, field in options_of(Group).items():
        add_option(parser, f"group.{name}", field)
    words = ["--rpo.group.share", "1", "--rpo.group.limit", "9", "--rpo.group.on", "yes"]
    assert list(vars(parser.parse_args(words)).values()) == [1.0, 9, "a", True]
    assert [value_type(f) for f in options_of(Group).values()] == [float, int, str, str]


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", "on"])
def test_true(text):
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["false", "FALSE", "0", "no", "off"])
def test_false(text):
    assert parse_bool(text) is False


def test_anything_else_is_neither():
    with pytest.raises(argparse.ArgumentTypeError, match="true or false, not 'maybe'"):
        parse_bool("maybe")


def test_an_amount_is_a_kind_and_a_number_within_its_bounds():
    kinds = {"ratio": Bounds(0, 1, (True, False)), "fixed": Bounds(0)}
    assert parse_amount("cut.max", "ratio:0.5", kinds) == ("ratio", 0.5)
    assert parse_amount("cut.max", "fixed:0", kinds) == ("fixed", 0.0)
    for text, message in (
        ("half:0.5", "expected ratio:NUMBER or fixed:NUMBER"),
        ("300", "expected ratio:NUMBER or fixed:NUMBER"),
        ("ratio:x", "'x' is not a number"),
        ("ratio:0", "the number of ratio must be above 0 and at most 1"),
        ("fixed:inf", "the number of fixed must be at least 0"),
        ("fixed:nan", "the number of fixed must be at least 0"),
    ):
        with pytest.raises(OptionError, match=f"--rpo.cut.max {text}: .*{message}"):
            parse_amount("cut.max", text, kinds)
