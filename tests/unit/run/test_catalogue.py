"""Every recorded metric is documented, and every documented one is recorded."""

import importlib.util
from pathlib import Path

import pytest

from openrlhf_rpo.run import catalogue
from openrlhf_rpo.run.catalogue import FAMILIES, SECTIONS, meaning
from openrlhf_rpo.run.metrics import cache_metrics, rollout_metrics
from openrlhf_rpo.types import CacheDecision, Group, Prefix, Question, Sample, Visit

ROOT = Path(__file__).parents[3]
SAMPLE = Sample(Prefix(), (1, 2), (-1.0, -1.0), "stop", 1.0, 1.0, {"tidy": 1.0})


def tool():
    spec = importlib.util.spec_from_file_location("write_metrics", ROOT / "tools" / "write_metrics.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_figures_is_up_to_date():
    assert tool().FILE.read_text() == tool().metrics_page(), f"out of date: {tool().COMMAND}"


def test_everything_that_a_rollout_and_a_decision_record_is_documented():
    recorded = rollout_metrics([Group(Question("q", "1+1?", "2"), (SAMPLE, SAMPLE))], 1, {})
    for outcome in ("best", "random", "every", "no_rewarded_sample", "reset", "update_off"):
        recorded |= cache_metrics([CacheDecision(None, Visit("q", 1, 0, 0, 2, 2, 1, outcome))])
    assert "rpo/reward/tidy" in recorded
    assert {name for name in recorded if meaning(name) is None} == set()


def test_every_name_of_ours_is_written_by_the_code():
    package = ROOT / "openrlhf_rpo"
    readers = {Path(catalogue.__file__), *(package / "reports").rglob("*.py"), *(package / "cli").rglob("*.py")}
    source = "".join(path.read_text() for path in package.rglob("*.py") if path not in readers)
    for name in {**catalogue.ROLLOUT, **catalogue.CACHE, **catalogue.TIMING}:
        short = name.removeprefix("rpo/cache/").removeprefix("timing/")
        assert any(text in source for text in (f'"{name}"', f'"{short}"', f"{short}=")), name


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("rpo/reward/steps", "rpo/reward/NAME"),
        ("eval_default_pass1", "eval_SOURCE_pass1"),
        ("eval_math_500_pass16", "eval_SOURCE_passK"),
        ("eval_gsm8k_truncated_rate", "eval_SOURCE_truncated_rate"),
    ],
)
def test_a_name_with_a_part_of_the_runs_own_is_known(name, family):
    assert meaning(name) is FAMILIES[family]


def test_an_unknown_name_has_no_meaning():
    assert meaning("rpo/scores") is None and meaning("eval_default_passes") is None


def test_units_are_few_and_no_name_stands_twice():
    names = [name for section in SECTIONS.values() for name in section]
    units = {figure.unit for section in SECTIONS.values() for figure in section.values()}
    assert len(names) == len(set(names))
    assert units <= {"", "share", "percent", "tokens", "steps", "seconds"}
