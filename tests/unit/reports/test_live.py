"""What a live page is told: later steps only, everything after the run went back, and only on this machine."""

import http.client
import json
import shutil
import sqlite3
import threading

import pytest
from sqlalchemy import Engine, event

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.reports.live import HOST, LiveRun, server
from openrlhf_rpo.reports.page import document
from openrlhf_rpo.run.samples import FOLDER
from openrlhf_rpo.types import Path, Question

DOCUMENT = document("r", "", [], live={"interval": 3})


@pytest.fixture
def run(begin_run, tmp_path):
    url = begin_run(tmp_path)
    return LiveRun("r", url, lambda cache: (lambda lists: [str(len(ids)) for ids in lists], False), lambda *_: {})


def test_only_new_steps_are_sent(run, take_step):
    take_step(run.url, 1)
    first = run.news(-1, "")
    assert (first["from"], first["steps"], first["after"]) == (-1, [1], 1)
    assert first["names"]["ids"] == ["q0", "q1", "q2"] and first["events"]["paths"]["step"] == [0, 0, 1]
    take_step(run.url, 2)
    later = run.news(first["after"], first["mark"])
    assert (later["from"], later["steps"]) == (1, [2])
    assert "names" not in later and later["events"]["paths"]["step"] == [2] and later["events"]["visits"]["step"] == [2, 2]
    nothing = run.news(later["after"], later["mark"])
    assert (nothing["from"], nothing["steps"], nothing["events"]["paths"]["q"]) == (2, [], [])


def test_a_run_that_went_back_is_sent_anew(run, take_step):
    for step in (1, 2):
        take_step(run.url, step)
    told = run.news(-1, "")
    with PathCache.open(run.url) as cache:
        cache.rollback(1)
    assert (run.news(told["after"], told["mark"])["from"], run.news(-1, "")["steps"]) == (-1, [1])
    take_step(run.url, 2, reward=9.0)  # the same step, another run of it
    again = run.news(told["after"], told["mark"])
    assert (again["from"], again["steps"], again["series"]["reward"]) == (-1, [1, 2], [0.5, 9.0])


def test_before_the_first_step_more_paths_are_news(run):
    told = run.news(-1, "")
    assert (told["after"], told["steps"]) == (0, []) and "No step was committed yet" in told["summary"]["runs"][0]["notes"][
        0
    ]
    assert run.news(0, told["mark"])["from"] == 0
    assert run.news(0, "another")["from"] == -1


def test_a_run_that_is_not_there_yet_is_waited_for(run, tmp_path):
    run.url = f"sqlite:///{tmp_path}/later/rpo_cache.db"
    told = run.news(-1, "")
    assert told["missing"] and not told["trouble"] and "no path cache" in told["state"]
    assert not (tmp_path / "later").exists()


def test_a_run_that_takes_the_place_of_another_brings_its_own_questions_and_tokenizer(begin_run, tmp_path):
    url = begin_run(tmp_path)

    def decoder(cache):
        tokenizer = cache.fingerprints["tokenizer"]
        return lambda lists: [tokenizer] * len(lists), False

    run = LiveRun("r", url, decoder, lambda *_: {})
    told = run.news(-1, "")
    assert told["names"]["ids"] == ["q0", "q1", "q2"] and run.question("q0")["paths"]
    (tmp_path / "rpo_cache.db").unlink()
    with PathCache.open(url, {"data": "other", "tokenizer": "theirs"}) as cache:
        cache.commit_initial([Path(name, (1, 2), None, "stop", 1.0, 1.0) for name in ("z1", "z2")])
        cache.mark_initialised()
        assert run.news(told["after"], told["mark"])["names"]["ids"] == ["z1", "z2"]  # as many paths as there were
        cache.describe([Question(f"z{i}", "p", "1", text="other") for i in range(3)], "their-model")
    told = run.news(-1, "")
    assert told["names"]["texts"] == ["other"] * 3 and told["events"]["paths"]["q"] == [1, 2]
    assert run.question("z1")["paths"][0]["text"] == "theirs"


def test_a_run_that_claims_a_cache_is_shown_with_its_own_questions_once_it_has_described_them(run, tmp_path):
    run.url = f"sqlite:///{tmp_path}/claimed/rpo_cache.db"
    for name in ("former", "own"):
        with PathCache.open(run.url, {"data": name}) as cache:
            run.news(-1, "")  # between the two the questions are still the former ones
            cache.describe([Question(name, "p", "1")], "m")
            assert run.news(-1, "")["names"]["ids"] == [name]


def test_an_answer_reads_the_options_in_one_query(run, take_step):
    """A run has over a hundred. Each is checked all the same."""
    take_step(run.url, 1)
    run.news(-1, "")
    queries, asked = [], []

    def count(_connection, _cursor, statement, *_):
        queries.append(statement)

    event.listen(Engine, "before_cursor_execute", count)
    try:
        for number in (1, 100):
            with PathCache.open(run.url) as cache:
                cache.set_options({f"o{i}": "1" for i in range(number)})
            queries.clear()
            run.news(-1, "")
            asked.append(len(queries))
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert asked[0] == asked[1] > 0
    with sqlite3.connect(run.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE runs SET value = '2' WHERE key = 'option.o7'")
    told = run.news(-1, "")
    assert told["trouble"] and "the entry 'option.o7' about the run is damaged" in told["state"]


def test_a_live_page_misses_samples_that_are_not_there(run, take_step, tmp_path):
    take_step(run.url, 1)
    for missed in (False, True):
        notes = run.news(-1, "")["summary"]["runs"][0]["notes"]
        assert any("No samples are shown" in note for note in notes) is missed
        if not missed:
            shutil.rmtree(tmp_path / FOLDER)


def test_a_question_has_its_lineage(run, take_step):
    take_step(run.url, 1)
    found = run.question("q0")
    assert [path["step"] for path in found["paths"]] == [0, 1]
    assert run.question("q2")["paths"] == [] and run.question("q2")["as_ids"] is False
    with pytest.raises(KeyError, match="q9"):
        run.question("q9")


def test_watching_neither_locks_nor_changes_the_database(run, take_step):
    take_step(run.url, 1)
    with PathCache.open(run.url) as writer:
        assert run.news(-1, "")["steps"] == [1]
        with sqlite3.connect(run.url.removeprefix("sqlite:///")) as connection:
            connection.execute("BEGIN IMMEDIATE")  # nobody holds the file
            connection.rollback()
        assert writer.latest_step == 1


# ── The server ──


@pytest.fixture
def ask(run):
    """``ask(path, host)``: status, type and text of an answer."""
    serving = server(run, DOCUMENT, 0)
    threading.Thread(target=serving.serve_forever, daemon=True).start()

    def get(path, host=None):
        connection = http.client.HTTPConnection(HOST, serving.server_port, timeout=10)
        connection.request("GET", path, headers={"Host": host or f"localhost:{serving.server_port}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers["Content-Type"], text

    yield get
    serving.shutdown()
    serving.server_close()


def test_the_page_and_its_data_are_served_on_this_machine_alone(ask):
    status, kind, text = ask("/")
    assert (status, kind) == (200, "text/html; charset=utf-8") and "connect-src &#x27;self&#x27;" in text
    status, kind, text = ask("/data?after=-1&mark=")
    assert (status, kind) == (200, "application/json; charset=utf-8") and json.loads(text)["after"] == 0
    assert json.loads(ask("/question?id=q0")[2])["paths"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../page.py", "/question", "/question?id=none", "/data?after=x", "http://[bad/"]
)
def test_what_is_not_there_is_not_found(ask, path):
    assert ask(path)[0] == 404


def test_a_page_of_another_host_gets_nothing(ask):
    assert ask("/data?after=-1&mark=", "evil.example:80")[0] == 403


def test_a_damaged_cache_is_an_answer_that_says_so(ask, run):
    with open(run.url.removeprefix("sqlite:///"), "r+b") as file:
        file.write(b"no database at all")
    told = json.loads(ask("/data?after=-1&mark=")[2])
    assert told["missing"] and told["trouble"] and "not a database" in told["state"]
    status, _, text = ask("/question?id=q0")
    assert status == 503 and "not a database" in text


def test_a_cache_that_is_being_made_is_not_read_yet(run):
    with open(run.url.removeprefix("sqlite:///"), "w"):
        pass
    assert "holds no path cache" in run.news(-1, "")["state"]
