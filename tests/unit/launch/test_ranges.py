"""No number of OpenRLHF's that makes no sense gets as far as an engine."""

import math
from pathlib import Path

import pytest

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.options import build_parser
from openrlhf_rpo.launch.options import parse as parse_words
from openrlhf_rpo.launch.ranges import RANGES, all_bounds
from openrlhf_rpo.option import parse_bool

LISTS = {action.dest for action in build_parser()._actions if action.nargs not in (None, 0)}
BOUNDS = {name: bounds for name, bounds in RANGES.items() if name not in LISTS}
FLOATS = [a.dest for a in build_parser()._actions if a.type is float and a.dest in BOUNDS]


def outside(bounds):
    """A number at or beyond each end."""
    below = [bounds.low if bounds.open[0] else bounds.low - 1] if bounds.low > -math.inf else []
    return below + ([bounds.high if bounds.open[1] else bounds.high + 1] if bounds.high < math.inf else [])


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, bounds in BOUNDS.items() for n in outside(bounds)])
def test_a_number_out_of_bounds_is_refused_by_its_option(parse, name, number):
    with pytest.raises(UsageError, match=f"^--{name} {number}(\\.0)?: "):
        parse(**{name.replace(".", "__"): number})


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_no_number_that_is_not_finite_is_accepted(parse, name, number):
    if number == "inf" and BOUNDS[name].infinite:
        return
    with pytest.raises(UsageError, match=f"^--{name} {number}: "):
        parse(**{name.replace(".", "__"): number})


def numbers():
    """The options of the training command that take numbers, or a number or a word."""
    return [action for action in build_parser()._actions if action.type not in (None, str, parse_bool)]


def test_every_number_has_bounds_and_the_page_shows_them():
    page = (Path(__file__).parents[3] / "docs" / "options.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `--")}
    assert len(numbers()) > 80
    assert [a.dest for a in numbers() if a.dest not in all_bounds()] == []
    assert [a.dest for a in numbers() if str(all_bounds()[a.dest]) not in rows[a.option_strings[0]]] == []


def test_each_number_of_a_list_is_looked_at(argv):
    for words in (["--actor.adam.betas", "0.9", "1"], ["--actor.eps_clip_low_high", "nan", "0.2"]):
        with pytest.raises(UsageError, match=f"^{' '.join(words)}(.0)?: at least 0"):
            parse_words([*argv(), *words])


def test_every_default_is_in_its_range():
    defaults = {action.dest: action.default for action in build_parser()._actions}
    for name, bounds in all_bounds().items():
        default = defaults[name]
        assert all(n is None or bounds.admit(n) for n in (default if isinstance(default, list | tuple) else [default])), name
