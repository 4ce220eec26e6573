"""``openrlhf-rpo cache``, ``report`` and ``watch`` on both databases."""

import json

import pytest

from openrlhf_rpo.cli.main import main
from openrlhf_rpo.reports.live import LiveRun


@pytest.fixture
def told(cache, commit, url, capsys):
    """Runs a sub-command on a cache of two questions and three steps, which its run has closed: its JSON."""
    for step in (1, 2, 3):
        commit(cache, step, {"q": (1, 2, step)})
    cache.close()

    def run(name, *words):
        assert main(["cache", name, url, *map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_cache_is_looked_at_by_its_url(told):
    assert told("info")["latest_step"] == 3
    assert [part["step"] for part in told("show", "q")["lineage"]] == [3]
    assert [visit["step"] for visit in told("history", "q")["visits"]] == [1, 2, 3]
    assert [row["step"] for row in told("stats")["steps"]] == [0, 1, 2, 3]
    assert [row["question_id"] for row in told("diff", 1, 3)["changed"]] == ["q"]
    assert told("verify")["damages"] == []


def test_a_cache_is_exported_and_changed_by_its_url(told, tmp_path):
    assert told("export", tmp_path / "paths.jsonl")["paths"] == 2
    assert told("rollback", 2, "--yes") == {"step": 2, "removed_steps": 1}
    assert told("prune", 2, "--yes") == {"readable_from_step": 2, "removed_paths": 2}
    told("vacuum")
    assert told("info")["latest_step"] == 2


def test_a_report_is_written_by_its_url(told, url, tmp_path, capsys):
    file = tmp_path / "report.html"
    assert told("info")["latest_step"] == 3
    assert main(["report", f"named={url}", "--out", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["name"] == "named"
    assert 'id="details-0-0"' in file.read_text()


def test_a_run_is_watched_by_its_url(told, url):
    assert told("info")["latest_step"] == 3
    run = LiveRun("r", url, lambda cache: (lambda lists: [str(len(ids)) for ids in lists], True), lambda *_: {})
    news = run.news(2, run.news(-1, "")["mark"])
    assert (news["from"], run.news(-1, "")["steps"]) == (-1, [1, 2, 3])
    assert len(run.question("q")["paths"]) == 4
