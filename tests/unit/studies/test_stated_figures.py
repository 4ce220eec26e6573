"""Figures that the pages quote are those of the results that they name."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("study", ["prefix-accuracy", "pathcheck"])
@pytest.mark.parametrize("kind", ["right paths", "wrong paths"])
def test_success_by_kind_of_path_is_that_of_the_result(study, kind):
    section = (ROOT / "docs" / "studies.md").read_text().split(f"## {study}\n")[1]
    row = re.search(rf"^\| (?:success, )?\d+ {kind} \|(.*)\|$", section, re.MULTILINE)[1]
    shown = [float(cell.split("±")[0]) for cell in row.split("|")]
    found = [at["mean"] for at in result(f"2026-11-21-study-{study}")["figures"][kind].values()]
    assert shown == pytest.approx(found, abs=0.005001)  # half a last digit


def test_the_steps_of_the_shortest_cut_have_at_least_as_many_groups_without_variance_as_stated():
    stated = re.search(r"in every step at least (\d+) of the 16 groups", (ROOT / "docs" / "reproduction.md").read_text())[1]
    steps = result("2026-11-21-study-tokens")["parts"]["fixed:24, factor:1/seed0"]["steps"]
    assert min(16 * step["no_variance"] for step in steps) == int(stated)


def test_cuts_over_the_whole_path_take_the_stated_share_of_grpo_s_seconds():
    low, high = re.search(r"in (\d+) to (\d+) % of its seconds", (ROOT / "README.md").read_text()).groups()
    levels = result("2026-11-22-all-rules")["levels"].values()
    shares = [
        arms[name]["seconds"] / arms["grpo"]["seconds"] for arms in levels for name in ("adaptive", "tree", "tree_segment")
    ]
    assert (round(100 * min(shares)), round(100 * max(shares))) == (int(low), int(high))
