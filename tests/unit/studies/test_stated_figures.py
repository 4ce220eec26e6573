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


ARMS = {
    "GRPO": "grpo",
    "RAFT on full paths": "raft",
    "RPO, uniform cuts": "rpo",
    "verified reuse, 32 steps": "verify_averaged",
    "verified reuse with `raft`, 16 steps": "verify_raft_8",
    "verified reuse with `raft`, 15 steps": "verify_raft_8",
}


def test_the_readmes_table_is_that_of_the_report():
    levels = result("2026-11-22-no-baseline")["levels"]
    section = (ROOT / "README.md").read_text().split("## What it saves, measured")[1]
    rows = re.findall(
        r"^\| (?:(main|hard) level: )?([^|]*) \((\d) seeds\) \|([^|]*)\|([^|]*)\| (\d+)k \| (\d+) \|$", section, re.M
    )
    assert len(rows) == 10
    level = None
    for named, arm, seeds, on_the_way, end, tokens, seconds in rows:
        level = named or level
        found = levels[level][ARMS[arm]]
        at = [found["at_tokens"][str(budget)] for budget in (20_000, 30_000)]
        assert on_the_way.strip() == " / ".join(f"{a[0]:.2f}" for a in at)
        assert end.strip() == f"{found['accuracy']:.2f} ± {found['accuracy_sd']:.2f}"
        assert (int(seeds), int(tokens)) == (len(found["seeds"]), round(found["generated_tokens"] / 1000))
        assert int(seconds) == round(found["seconds"])


def test_the_shares_beside_it_are_those_of_the_table():
    levels = result("2026-11-22-no-baseline")["levels"]
    stated = re.search(
        r"with (\d+) % of its tokens and (\d+) % of its seconds on main, and with (\d+) % and (\d+) % on hard",
        " ".join((ROOT / "README.md").read_text().split()),
    )
    found = [
        round(100 * levels[level]["verify_raft_8"][figure] / levels[level]["grpo"][figure])
        for level in ("main", "hard")
        for figure in ("generated_tokens", "seconds")
    ]
    assert [int(share) for share in stated.groups()] == found
