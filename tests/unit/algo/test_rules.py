"""Laws of rules as plug points: named, listed, and a user's own."""

import random

import pytest

from openrlhf_rpo import config
from openrlhf_rpo.algo.cut import CUT_RULES, CutContext, cut_rule
from openrlhf_rpo.algo.update import UPDATE_RULES, update_rule
from openrlhf_rpo.algo.user_rules import UserRuleError
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path

OWN_RULES = """
from openrlhf_rpo.algo.cut import CutRule
from openrlhf_rpo.algo.update import Choice


SHARE = 0.5


def middle(context):
    return context.for_each_sample(lambda: len(context.path) // 2)


scored = CutRule(middle, scores=True)


def last(context):
    return Choice({0: len(context.scores) - 1}, "last")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rules.py"
    path.write_text(OWN_RULES)
    return path


def context(n=4, length=10):
    path = Path("q", tuple(range(length)), (-0.5,) * length, "stop", 1.0, 1.0)
    cut_options = CutOptions(max="ratio:1")
    return CutContext((path,) * n, n, cut_options, random.Random(0), (), (path.log_probs,) * n)


def test_the_options_list_every_rule_with_a_line():
    assert config.CUT_RULES.keys() == CUT_RULES.keys()
    assert config.UPDATE_RULES.keys() == UPDATE_RULES.keys()


@pytest.mark.parametrize("name", CUT_RULES)
def test_a_rule_answers_with_a_cut_that_fits_for_each_sample(name):
    for length in (1, 2, 10, 100):
        cuts = CUT_RULES[name].choose(context(length=length))
        assert len(cuts) == 4 and all(1 <= cut <= length for cut in cuts)  # the end token goes in any case


def test_bare_leaves_nothing_of_the_path():
    assert CUT_RULES["bare"].choose(context(n=2, length=7)) == (7, 7)


def test_a_function_in_a_file_is_a_rule(file):
    assert cut_rule(f"{file}:middle").choose(context()) == (5, 5, 5, 5)
    assert not cut_rule(f"{file}:middle").scores and cut_rule(f"{file}:scored").scores
    assert update_rule(f"{file}:last").__name__ == "last"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("missing.py:rule", "there is no file 'missing.py'"),
        ("{file}:upper", "has no 'upper'"),
        ("{file}:SHARE", "'SHARE' is a float, not a function"),
        ("{broken}:rule", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_rule_that_cannot_be_loaded_is_named(file, tmp_path, spec, message):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(UserRuleError, match=message):
        cut_rule(spec.format(file=file, broken=broken))
