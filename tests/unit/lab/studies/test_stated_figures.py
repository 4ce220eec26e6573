"""Figures that the pages quote are those of the results that they name."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from lab import uses
from lab.curves import at_tokens
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


UPDATES, PASSES = "2026-11-27-evidence-updates", "2026-11-27-evidence-passes"
GROUPS = "2026-11-25-evidence-groups"
REPORTS = {
    "32 questions, one answer each, 8 updates": (UPDATES, ("raft", "rpo", "verify")),
    "the same in two passes": (PASSES, ("raft",)),
    "4 questions, one answer each": ("2026-11-28-evidence-fours", ("raft", "verify")),
    "8 or 16 questions, one answer each": ("2026-11-26-evidence-small-steps", ("raft", "rpo", "verify")),
    "the same with eight fresh seeds": ("2026-11-27-evidence-again", ("raft", "verify")),
    "32 questions, one answer each": ("2026-11-25-evidence", ("raft", "rpo", "verify")),
    "8 questions, groups of four": (GROUPS, ("raft", "rpo", "verify")),
    "32 questions, one answer each, level main": (UPDATES + "-main", ("raft", "rpo", "verify")),
    "8 questions, one answer each, level main": ("2026-11-26-evidence-main", ("raft", "rpo", "verify")),
}
ROW = r"\| (\S+(?: / \S+){3}) \| (\S+ ± \S+) \| (\d+)k \|(?: (\S+) \|)?\n"
"""Accuracy on the way and at the end, thousands of generated tokens, learning rate."""


def rows(page: str, first: str, *others: str) -> list[tuple[str, str, str, str]]:
    """The rows that begin so, one below the other."""
    pattern = "".join(rf"\| {re.escape(name)} {ROW}" for name in (first, *others))
    [found] = re.findall(rf"^{pattern}", (ROOT / page).read_text(), re.MULTILINE)
    return [found[at : at + 4] for at in range(0, len(found), 4)]


def level_of(report: str) -> dict:
    [level] = result(report)["levels"].values()
    return level


def cells(arm: dict) -> tuple[str, str, int]:
    """What a page says of an arm; "-" where not all of its runs were measured."""
    runs = arm["runs"].values()
    on_the_way = [[at_tokens(run["curve"], budget) for run in runs] for budget in (20_000, 30_000, 50_000, 75_000)]
    return (
        " / ".join("-" if None in values else f"{fmean(values):.2f}" for values in on_the_way),
        "{:.2f} ± {:.2f}".format(*arm["policy"]),
        round(fmean(run["tokens"] for run in runs) / 1000),
    )


def compare(level: dict, name: str, shown: Sequence[str]) -> None:
    arm, (on_the_way, end, tokens, lr) = level["arms"][name], shown
    assert (on_the_way, end, int(tokens)) == cells(arm) and len(arm["runs"]) == 8
    assert not lr or level["chosen"][NAMES[name]].endswith(f"-lr{float(lr):g}")


SHOWN = {"raft": "full answers (`off`)", "rpo": "`rpo`", "verify": "`verify`"}


@pytest.mark.parametrize("shape", REPORTS)
def test_the_rows_of_arms_that_are_tuned_alike_are_those_of_the_report(shape):
    report, (_, *others) = REPORTS[shape]
    shown = rows("docs/evidence.md", f"{shape}: full answers (`off`)", *(SHOWN[name] for name in others))
    for name, cells_shown in zip(("raft", *others), shown, strict=True):
        compare(level_of(report), name, cells_shown)


@pytest.mark.parametrize(
    ("shape", "report", "others"),
    [
        ("32 questions, one answer each, 16 updates in two passes", PASSES, ()),
        ("8 updates in one pass", UPDATES, ("verify", "rpo")),
        ("8 questions, groups of four, one update", GROUPS, ("verify", "rpo")),
    ],
)
def test_the_rows_of_the_readme_are_those_of_the_reports(shape, report, others):
    shown = rows("README.md", f"{shape}: full answers (`off`)", *(SHOWN[name] for name in others))
    for name, cells_shown in zip(("raft", *others), shown, strict=True):
        compare(level_of(report), name, cells_shown)


PRETRAINED = {
    "2026-11-26-real": {},
    "2026-11-29-real-leg-counting-updates": {
        "raft": "leg_counting, 6 updates a step: full answers (`off`)",
        "grpo": "GRPO, 24 questions x 4",
    },
    "2026-11-29-real-leg-counting-more-updates": {"raft": "full answers (`off`), 12 updates a step"},
    "2026-11-27-real-products": {"grpo": "GRPO, 24 questions x 4"},
    "2026-11-27-real-products-updates": {"raft": "full answers (`off`), 48 questions"},
    "2026-11-28-real-updates": {
        "raft": "products, 6 updates a step: full answers (`off`)",
        "grpo": "GRPO, 24 questions x 4",
    },
    "2026-11-27-real-chain-sum": {"grpo": "GRPO, 8 questions x 4"},
    "2026-11-29-real-chain-sum-updates": {
        "raft": "chain_sum, 6 updates a step: full answers (`off`)",
        "grpo": "GRPO, 24 questions x 4",
    },
}
"""Reports, and how their arms are called in the table where not as elsewhere."""


@pytest.mark.parametrize("report", PRETRAINED)
def test_the_rows_of_the_pretrained_model_are_those_of_the_report(report):
    page = (ROOT / "docs" / "evidence.md").read_text().split("| SmolLM2-135M | halfway")[1].split("\n\n")[0]
    for name, arm in level_of(report)["arms"].items():
        half = [run["curve"][1] for run in arm["runs"].values()]
        accuracy, so_far = fmean(a for _, a in half), fmean(tokens for tokens, _ in half) / 1000
        end, tokens = "{:.2f} ± {:.2f}".format(*arm["policy"]), arm["tokens"][0] / 1000
        seconds = f"{arm['seconds'][0]:.0f}" if arm["seconds"] else "-"
        shown = (SHOWN | PRETRAINED[report])[name]
        row = f"{shown}, {arm['steps']} steps | {accuracy:.2f} ({so_far:.0f}k) | {end} | {tokens:.0f}k | {seconds} |"
        assert row in page and len(half) == 3


@pytest.mark.parametrize(
    ("shown_as", "name", "report"),
    [
        ("4 questions, groups of four: GRPO", "grpo", "2026-11-26-evidence-grpo"),
        ("8 questions, groups of four: DAPO", "dapo", "2026-11-26-evidence-grpo"),
        ("8 questions, groups of four, 8 updates: GRPO", "grpo", "2026-11-28-evidence-grpo-updates"),
        ("8 questions, groups of four, 8 updates: DAPO", "dapo", "2026-11-28-evidence-grpo-updates"),
    ],
)
def test_the_rows_of_grpo_and_dapo_are_those_of_the_report(shown_as, name, report):
    level = result(report)["levels"]["hard"]
    [found] = rows("docs/evidence.md", shown_as)
    compare(level, name, found)
    assert level["chosen"][NAMES[name]].split("-")[1].startswith(f"{shown_as[0]}x4")


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
