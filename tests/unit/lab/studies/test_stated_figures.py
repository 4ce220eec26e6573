"""Figures that the pages quote are those of the results that they name."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import uses
from lab.evidence import NAMES

ROOT = Path(__file__).parents[4]
RESULTS = ROOT / "lab" / "results"


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


ARMS = {"full answers (`off`)": "raft", "`rpo`": "rpo_raft", "`verify`": "verify_raft"}


REPORTS = {
    "8 or 16 questions, one answer each": "2026-11-26-evidence-small-steps",
    "32 questions, one answer each": "2026-11-25-evidence",
    "8 questions, groups of four": "2026-11-25-evidence-groups",
    "8 questions, one answer each, level main": "2026-11-26-evidence-main",
}
ON_README = ("8 or 16 questions, one answer each", "8 questions, groups of four")


@pytest.mark.parametrize(
    ("page", "shape"), [("docs/methods.md", shape) for shape in REPORTS] + [("README.md", shape) for shape in ON_README]
)
def test_the_rows_of_arms_that_are_tuned_alike_are_those_of_the_report(page, shape):
    [level] = result(REPORTS[shape])["levels"].values()
    [found] = re.findall(
        rf"^\| {shape}: full answers \(`off`\) {ROW}\| `rpo` {ROW}\| `verify` {ROW}", (ROOT / page).read_text(), re.MULTILINE
    )
    for place, name in enumerate(("raft", "rpo", "verify")):
        compare(level, name, found[4 * place : 4 * place + 4])


ROW = r"\| (\S+ / \S+ / \S+) \| (\S+ ± \S+) \| (\d+)k \|(?: (\S+) \|)?\n"
"""Accuracy on the way and at the end, thousands of generated tokens, learning rate."""


def compare(level: dict, name: str, shown: Sequence[str]) -> None:
    arm, (on_the_way, end, tokens, lr) = level["arms"][name], shown
    assert on_the_way == " / ".join(f"{arm['at_tokens'][str(budget)][0]:.2f}" for budget in (20_000, 30_000, 50_000))
    assert end == "{:.2f} ± {:.2f}".format(*arm["policy"]) and int(tokens) == round(arm["tokens"][0] / 1000)
    assert not lr or level["chosen"][NAMES[name]].endswith(f"-lr{float(lr):g}")
    assert {seeds for *_, seeds in (arm["policy"], arm["tokens"])} == {8}


def test_the_rows_of_the_pretrained_model_are_those_of_the_report():
    arms = result("2026-11-26-real")["levels"]["leg_counting"]["arms"]
    page = (ROOT / "docs" / "methods.md").read_text().split("| SmolLM2-135M, leg_counting |")[1]
    for name, shown_as in (("raft", "full answers (`off`)"), ("rpo", "`rpo`"), ("verify", "`verify`")):
        arm = arms[name]
        early, late = (arm["at_tokens"][str(budget)][0] for budget in (20_000, 30_000))
        end, tokens, seconds = "{:.2f} ± {:.2f}".format(*arm["policy"]), arm["tokens"][0] / 1000, arm["seconds"][0]
        row = f"| {shown_as}, {arm['steps']} steps | {early:.2f} / {late:.2f} | {end} | {tokens:.0f}k | {seconds:.0f} |"
        assert row in page


@pytest.mark.parametrize(
    ("shown_as", "name"), [("4 questions, groups of four: GRPO", "grpo"), ("8 questions, groups of four: DAPO", "dapo")]
)
def test_the_rows_of_grpo_and_dapo_are_those_of_the_report(shown_as, name):
    level = result("2026-11-26-evidence-grpo")["levels"]["hard"]
    [found] = re.findall(rf"^\| {shown_as} {ROW}", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    compare(level, name, found)
    assert level["chosen"][NAMES[name]].split("-")[1] == f"{shown_as[0]}x4"


def test_the_table_of_asynchronous_runs_is_that_of_the_report():
    page = (ROOT / "docs" / "asynchronous.md").read_text()
    rows = re.findall(r"^\| (\w+), (.*) \| (\S+ \(.*\)) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    levels, shown = result("2026-11-26-async")["levels"], {(level, arm): cells for level, arm, *cells in rows}
    found = {
        (level, arm): [uses.cell_of(one["against"][what]) for what in ("times_faster", "accuracy", "tokens")]
        for level, arms in levels.items()
        for arm, name in ARMS.items()
        for one in [arms[f"{name}_async-32x1-lr0.00025"]]
        if one["seeds"] == [0, 1, 2, 3, 4]
    }
    assert shown == found and len(found) == 6


def test_the_table_of_what_is_reused_is_that_of_the_report():
    levels = result("2026-11-23-what-is-reused")["levels"]
    page = (ROOT / "docs" / "methods.md").read_text().split("**What is reused, everything else alike.**")[1]
    row = r"^\| (?:(main|hard) level: )?([^|]*) \| (\S+ / \S+) \| (\S+ ± \S+) \| (\d+)k \| (\d+) \|$"
    rows = re.findall(row, page, re.MULTILINE)
    assert len(rows) == 6
    level = None
    for named, arm, on_the_way, end, tokens, seconds in rows:
        level = named or level
        found = levels[level][ARMS[arm]]
        assert on_the_way == " / ".join(f"{found['at_tokens'][str(budget)][0]:.2f}" for budget in (20_000, 30_000))
        assert end == f"{found['accuracy']:.2f} ± {found['accuracy_sd']:.2f}"
        assert (int(tokens), int(seconds)) == (round(found["generated_tokens"] / 1000), round(found["seconds"]))
