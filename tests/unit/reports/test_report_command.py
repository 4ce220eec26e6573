"""``openrlhf-rpo report`` and ``watch`` as a person and as a program meet them."""

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path as File

import pytest
from sqlalchemy import create_engine

from lab.testbed import model_dir
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.reports import watch
from openrlhf_rpo.reports.live import server as live_server
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.reports.sources import names, source
from openrlhf_rpo.reports.text import missing_samples
from openrlhf_rpo.run.samples import FOLDER
from openrlhf_rpo.types import CacheDecision, Path, Question, StepRecord, Visit

PLAIN = "events.out.tfevents.1.host"


def make_run(folder: File, steps: int = 2, data: str = "d") -> File:
    """A cache with one question, whose tokenizer is not on this machine."""
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db", {"data": data}) as cache:
        cache.describe([Question("aa", "<u>1+1?", "2", text="1+1?")], "no/such-model")
        cache.commit_initial([Path("aa", (5, 6, 7), None, "stop", 1.0, 1.0)])
        cache.mark_initialised()
        for step in range(1, steps + 1):
            metrics = {"rpo/score": 0.5, "rpo/tokens_generated_total": 10.0 * step, "rpo/tokens_reused_total": 5.0}
            cache.commit_step(StepRecord(step, 0, step, metrics), [])
    return folder


@pytest.fixture
def run(tmp_path) -> File:
    return make_run(tmp_path / "a" / "checkpoints")


@pytest.fixture
def report(tmp_path, capsys):
    """``report(*words)``: status, output, errors, and the page's text."""

    def command(*words):
        file = tmp_path / "out.html"
        status = main(["report", *map(str, words), "--out", str(file)])
        return status, *capsys.readouterr(), file.read_text() if file.exists() else ""

    return command


def document_of(page: str) -> dict:
    return json.loads(page.split('id="document">')[1].split("</script>")[0])


def test_the_page_is_one_file_that_names_no_other_place(report, run):
    status, out, errors, page = report(run)
    assert status == 0 and "open it in a browser" in out and "Token ids are shown" in errors
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and page.count("https://") == 1  # in a comment
    assert document_of(page)["runs"][0]["questions"] == {"total": 1, "as_ids": True}


def test_the_folder_above_the_checkpoints_does_as_well(report, run):
    assert document_of(report(run.parent)[3])["runs"][0]["place"] == str(run / "rpo_cache.db")


def test_json_is_the_summary_for_programs(report, run):
    status, out, _, page = report(run, "--json")
    told = json.loads(out)
    assert status == 0 and told["bytes"] == len(page.encode()) and told["runs"] == document_of(page)["summary"]["runs"]


def test_runs_that_differ_are_compared_with_a_note(report, run, tmp_path):
    other = make_run(tmp_path / "b" / "checkpoints", data="e")
    _, out, _, page = report(run, f"theirs={other}")
    assert [one["name"] for one in document_of(page)["runs"]] == ["a", "theirs"]
    assert "not have the same training questions (fingerprints: a d, theirs e)" in out


def test_samples_that_are_not_beside_the_cache_are_missed(report, run):
    """They are in the --ckpt.path of a run whose cache is elsewhere, such as on a database server."""
    missed = "No samples are shown: if the run kept them (--rpo.log_samples), put rpo_samples of its --ckpt.path beside"
    assert missed in report(run)[1]
    assert missing_samples("postgresql+psycopg://u@host/db", Run("a", "", "rpo", [StepRecord(1, 0, 1, {})], [])).startswith(
        missed
    )
    (run / FOLDER).mkdir()
    assert missed not in report(run)[1]
    (run / FOLDER).rmdir()
    (run / "writer").touch()  # as in --ckpt.path: it kept no samples
    assert missed not in report(run)[1]


def test_a_run_without_a_step_is_shown_as_far_as_it_is(report, tmp_path):
    status, out, _, page = report(make_run(tmp_path / "x", steps=0))
    assert status == 0 and "No step was committed yet" in out
    assert document_of(page)["runs"][0]["steps"] == []


def test_of_several_runs_the_one_that_cannot_be_read_is_left_out_and_named(report, run, tmp_path):
    (tmp_path / "broken.db").write_text("no database, but long enough to be looked at as one" * 9)
    status, _, errors, page = report(run, tmp_path / "broken.db", tmp_path / "none")
    assert status == 1 and errors.count("left out:") == 2
    assert len(document_of(page)["runs"]) == 1 and len(document_of(page)["notes"]) == 2


def test_a_cache_of_another_version_says_which(report, run):
    for revision, words in (("0000later", "Install the version that wrote it"), ("0001", "Resuming its run upgrades it")):
        file = run / "rpo_cache.db"
        engine = create_engine(f"sqlite:///{file}")
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
        engine.dispose()
        status, _, errors, page = report(run)
        assert status == 1 and words in " ".join(errors.split()) and page == ""


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nothing", "there is no such file or folder"),
        ("empty", "of a plain run (--rpo.enable false) its --logger.tensorboard_dir"),
        ("plain", "hold no figure under train/ or eval/"),
    ],
)
def test_a_place_without_a_run_is_refused_with_what_to_give(report, tmp_path, place, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / PLAIN).write_bytes(b"")
    status, _, errors, page = report(tmp_path / place)
    assert status == 1 and words in errors and errors.startswith("error: ") and page == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--questions", "0"), "--questions must be at least 1"),
        (("--samples-mb", "-1"), "--samples-mb at least 0"),
        (("--tokenizer", str(model_dir("main"))), ""),
        (("--tokenizer", "/none"), "cannot be loaded"),
    ],
)
def test_options_that_cannot_work_are_refused(report, run, words, said):
    status, _, errors, _ = report(run, *words)
    assert (status, said in errors) == (0 if not said else 1, True)


def test_the_file_is_named_not_its_folder(run, tmp_path, capsys):
    assert main(["report", str(run), "--out", str(tmp_path)]) == 1
    assert f"name the file, such as {tmp_path}/report.html" in capsys.readouterr().err


def test_an_earlier_report_is_replaced_and_nothing_else_is(run, tmp_path, capsys):
    file = tmp_path / "new" / "folder" / "r.html"
    for title in ("first", "second"):
        assert main(["report", str(run), "--out", str(file), "--title", title]) == 0
    assert "<title>second</title>" in file.read_text()
    assert main(["report", str(run), "--out", str(run / "rpo_cache.db")]) == 1
    assert "exists and is no report" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert main(["report", str(run), "--out", str(tmp_path / "pipe")]) == 1
    assert "pipe is no file: name one" in capsys.readouterr().err
    with PathCache.open_to_read(f"sqlite:///{run}/rpo_cache.db") as cache:
        assert cache.latest_step == 2


def test_names_of_no_text_are_names_too(run, tmp_path, monkeypatch):
    """Linux allows any bytes in them."""
    folder, file = tmp_path / os.fsdecode(b"run\xff"), tmp_path / "r.html"
    shutil.copytree(run, folder)
    assert main(["report", str(folder), "--out", str(file), "--title", "\udcff"]) == 0
    assert "<title>\\udcff</title>" in file.read_text()
    assert main(["cache", "vacuum", str(folder)]) == 0


def test_a_limit_on_questions_is_said_in_the_page(report, tmp_path):
    folder = tmp_path / "many"
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db", {}) as cache:
        cache.describe([Question(f"q{i}", "p", "1", text="t") for i in range(5)], "m")
    _, out, _, page = report(folder, "--questions", "2")
    assert document_of(page)["runs"][0]["questions"]["total"] == 5
    assert "2 of 5 questions are in this file" in out


def test_relative_and_absolute_places_are_named_alike(run, tmp_path, monkeypatch):
    """A cache's place is absolute."""
    (tmp_path / "plain" / "tensorboard").mkdir(parents=True)
    (tmp_path / "plain" / "tensorboard" / PLAIN).write_bytes(b"")
    shutil.copytree(run, tmp_path / "own" / "checkpoints")
    monkeypatch.chdir(tmp_path)
    for texts in (["own/checkpoints", "plain/tensorboard"], [str(tmp_path / "own"), str(tmp_path / "plain/tensorboard")]):
        assert names([source(text) for text in texts]) == ["own", "plain"]


def test_names_tell_runs_apart():
    def called(*texts):
        return names([source(text, must_exist=False) for text in texts])

    assert called("/x/runs/rpo/checkpoints") == ["rpo"]
    assert called("/x/rpo/seed0/checkpoints", "/x/rpo/seed1/checkpoints") == ["seed0", "seed1"]
    assert called("/x/a/seed0", "/x/b/seed0") == ["a/seed0", "b/seed0"]
    assert called("one=/x/a", "/x/a", "/x/a")[0] == "one"
    assert called("/x/a", "/x/a", "/x/a") == ["a", "a (2)", "a (3)"]


# ── watch ──


def test_watch_refuses_event_files_a_busy_port_and_no_interval(run, tmp_path, capsys):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / PLAIN).write_bytes(b"")
    assert main(["watch", str(tmp_path / "plain")]) == 1
    assert "tensorboard --logdir" in capsys.readouterr().err
    for interval in ("0", "nan", "inf", "1e9"):
        assert main(["watch", str(run), "--interval", interval]) == 1
        assert "from 0.2 to 86400 seconds" in capsys.readouterr().err
    assert main(["watch", str(run), "--port", "99999"]) == 1
    assert "choose another one, or 0 for a free one" in capsys.readouterr().err


def test_watch_says_at_once_that_a_tokenizer_cannot_serve(run, capsys, monkeypatch):
    monkeypatch.setattr(watch, "server", lambda *_: pytest.fail("served"))
    assert main(["watch", str(run), "--port", "0", "--tokenizer", "/none"]) == 1
    assert "error: the tokenizer of /none cannot be loaded" in capsys.readouterr().err


def test_a_page_is_told_why_a_question_cannot_be_shown(run):
    """The cache may come later than the check of the tokenizer, and samples may be damaged."""
    with pytest.raises(ExchangeError, match="the tokenizer of /none cannot be loaded"):
        watch.live_run("a", f"sqlite:///{run}/rpo_cache.db", "/none").question("aa")
    with PathCache.open(f"sqlite:///{run}/rpo_cache.db") as cache:
        visit = Visit("aa", 3, 0, 0, 3, 4, 1, "best")
        cache.commit_step(StepRecord(3, 0, 3, {}), [CacheDecision(None, visit)])
    (run / FOLDER).mkdir()
    (run / FOLDER / "step_00000003.parquet").write_bytes(b"cut short")
    live = watch.live_run("a", f"sqlite:///{run}/rpo_cache.db", None)
    serving = live_server(live, {"title": "a", "runs": []}, 0)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(f"http://localhost:{serving.server_port}/question?id=aa", timeout=30)
    finally:
        serving.shutdown()
        serving.server_close()
    assert answer.value.code == 503 and "step_00000003.parquet cannot be read" in answer.value.read().decode()


@pytest.mark.parametrize(
    ("watched", "above"),
    [
        *(("new/checkpoints", "new"), ("new", "new"), ("name=new", "new"), ("new=1", "new=1")),
        ("sqlite:///{here}/new/checkpoints/rpo_cache.db", "new"),
    ],
)
def test_a_run_whose_folder_is_not_there_yet_is_shown_once_it_begins(tmp_path, monkeypatch, watched, above):
    monkeypatch.chdir(tmp_path)
    one = source(watched.format(here=tmp_path), must_exist=False)
    live = watch.live_run(names([one])[0], one.text, None)
    folder = tmp_path / above / "checkpoints"
    for make in (lambda: None, folder.parent.mkdir, folder.mkdir):
        make()
        told = live.news(-1, "")
        assert told["missing"] and not told["trouble"] and "Waiting for the run" in told["state"]
    make_run(folder)
    assert live.news(-1, "")["steps"] == [1, 2] and live.where == str(folder / "rpo_cache.db")
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "step_00000003.parquet").write_bytes(b"cut short")
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as cache:
        cache.commit_step(StepRecord(3, 0, 3, {}), [CacheDecision(None, Visit("aa", 3, 0, 0, 3, 4, 1, "best"))])
    with pytest.raises(ExchangeError, match="step_00000003.parquet cannot be read"):  # samples are looked for there, too
        live.question("aa")


@pytest.mark.parametrize("begun", [True, False])
def test_watch_serves_a_run_until_it_is_interrupted(run, begun):
    if not begun:
        shutil.move(run / "rpo_cache.db", run / "away.db")
    command = [sys.executable, "-m", "openrlhf_rpo.cli.main", "watch", str(run), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": os.getcwd()}
    ) as process:
        try:
            lines = [process.stdout.readline() for _ in range(1 if begun else 2)]
            assert ("yet" in lines[0]) is not begun
            address = lines[-1].split(" at ")[1].split()[0]
            with urllib.request.urlopen(f"{address}data?after=-1&mark=", timeout=30) as answer:
                told = json.load(answer)
            assert told["missing"] is not begun
            process.terminate()  # a process in the background ignores the interrupt of a terminal
            assert process.wait(30) == 0
        finally:
            process.kill()
