"""Scores from files, shipped functions and real HTTP servers, good and bad."""

import asyncio
import json
import logging
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from openrlhf_rpo.config import RewardOptions
from openrlhf_rpo.errors import UsageError, UserError
from openrlhf_rpo.rollout import http_rewards
from openrlhf_rpo.rollout.reward_call import RewardRequest
from openrlhf_rpo.rollout.scoring import RewardFailures, check_reward_source, make_scorer

FILE = """
def reward_func(queries, prompts, labels):
    return {"rewards": 1 / int(labels[0])}
"""


def request(label, question_id="q"):
    return RewardRequest(question_id, "a prompt and a response", "a prompt", label, "a response", 3)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch):
    monkeypatch.setattr(http_rewards, "_BACKOFF_SECONDS", 0.01)


@pytest.fixture
def scorer():
    scorers = []

    def make(urls=None, **options):
        scorers.append(make_scorer(RewardOptions(**options), urls))
        return scorers[-1]

    yield make
    for made in scorers:
        if made is not None:
            made.close()


@pytest.fixture
def reward_file(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(FILE)
    return str(path)


@contextmanager
def server(answer):
    """A server on loopback; ``answer`` turns (number of the call, decoded body) into (status, text)."""
    calls = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append(body)
            status, text = answer(len(calls), body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

        def handle(self):
            with suppress(ConnectionError):  # the client gave up, as it should
                super().handle()

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.block_on_close = False
    threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/reward", calls
    finally:
        httpd.shutdown()
        httpd.server_close()


def echo(_, body):
    return 200, json.dumps({"rewards": [float(body["labels"][0])], "scores": [1.0], "extra_logs": {"n": [7]}})


def test_a_reward_model_needs_no_scorer(scorer):
    assert scorer(None) is None and scorer([]) is None


def test_shipped_functions_win_over_their_stand_in(scorer):
    [result] = scorer(["rpo"], functions="format").score([request("42")])
    assert (result.reward, result.failure) == (0.0, None)


def test_a_file_scores_and_its_failures_are_counted_and_logged_once(scorer, reward_file, caplog):
    made = scorer([reward_file], max_failure_share=0.5, on_failure=-2.0)
    with caplog.at_level(logging.WARNING):
        results = made.score([request("2"), request("0", "q7"), request("4")])
    assert [r.reward for r in results] == [0.5, -2.0, 0.25]
    assert made.failures == 1
    cause = "ZeroDivisionError: division by zero (reward.py, line 3)"
    assert [record.getMessage() for record in caplog.records] == [f"reward of question q7 failed: {cause}"]


def test_failures_of_a_call_on_its_way_count_while_an_evaluation_scores_apart(scorer, reward_file):
    made = scorer([reward_file], max_failure_share=1)
    with made.begin(2) as of_step, made.apart():
        made.score([request("0"), request("0")])
        of_step.add([request("0"), request("2")])
        of_step.finish()
    assert made.failures == 1


def test_too_many_failures_stop_the_run_and_name_five(scorer, reward_file):
    made = scorer([reward_file], max_failure_share=0.29, workers=1)
    requests = [request("0", f"bad{i}") for i in range(40)] + [request("1")] * 60
    with pytest.raises(RewardFailures) as caught:
        made.score(requests)
    text = str(caught.value)
    # 29 of 100 are allowed, the 30th failure stops the step
    assert text.startswith("30 of 100 rewards failed, 70 were not tried any more; --rpo.reward.max_failure_share is 0.29")
    assert "question bad4: ZeroDivisionError" in text and "bad5" not in text and "and 25 more" in text
    assert isinstance(caught.value, UserError)


def test_a_share_of_failures_at_the_limit_is_allowed(scorer, reward_file):
    made = scorer([reward_file], max_failure_share=0.5)
    assert len(made.score([request("0"), request("1")])) == 2
    with pytest.raises(RewardFailures):
        made.score([request("0"), request("0"), request("1")])


def test_where_none_may_fail_the_error_says_so(scorer, reward_file):
    with pytest.raises(RewardFailures) as caught:
        scorer([reward_file], max_failure_share=0.0, workers=1).score([request("0", "bad"), request("1")])
    assert str(caught.value) == (
        "1 of 2 rewards failed, 1 were not tried any more; none may fail with --rpo.reward.max_failure_share 0, "
        "the default of evaluations\n  question bad: ZeroDivisionError: division by zero (reward.py, line 3)"
    )


@pytest.mark.parametrize(("share", "allowed"), [(0.05, 1), (0.0, 0)])
def test_of_few_rewards_one_may_fail_unless_none_may(scorer, reward_file, share, allowed):
    """A round of dynamic sampling may have the samples of one question."""
    assert scorer([reward_file], max_failure_share=share).begin(8).allowed == allowed


WAITS = """
import time
from pathlib import Path

def reward_func(queries, prompts, labels):
    Path(__file__).with_name("busy").touch()
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return {"rewards": float(labels[0])}
"""


def test_rewards_are_computed_while_samples_are_made_and_come_in_the_order_of_the_samples(scorer, tmp_path):
    (tmp_path / "reward.py").write_text(WAITS)
    with scorer([str(tmp_path / "reward.py")], workers=2).begin(6) as scoring:
        for part in ("123", "4", "56"):
            scoring.add([request(label) for label in part])  # returns although no reward can be there yet
        (tmp_path / "go").touch()
        assert [r.reward for r in scoring.finish()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("bad", "fails"), [(2, False), (3, True)])
def test_the_share_of_failures_is_that_of_all_parts(scorer, reward_file, bad, fails):
    with scorer([reward_file], max_failure_share=0.5).begin(4) as scoring:
        for i in range(4):
            scoring.add([request("0" if i < bad else "1")])
        if fails:
            with pytest.raises(RewardFailures, match="^3 of 4 rewards failed"):
                scoring.finish()
        else:
            assert [r.failure is None for r in scoring.finish()] == [False, False, True, True]


def test_after_too_many_failures_no_part_is_tried(scorer, reward_file):
    made = scorer([reward_file], max_failure_share=0.25)
    with made.begin(4) as scoring:
        for _ in range(4):
            scoring.add([request("0")])
            scoring._parts[-1].result()
        with pytest.raises(RewardFailures, match="^2 of 4 rewards failed, 2 were not tried any more"):
            scoring.finish()
    assert made.failures == 2


def test_closing_ends_what_is_computed_in_the_background(scorer, tmp_path):
    (tmp_path / "reward.py").write_text(WAITS)
    made = scorer([str(tmp_path / "reward.py")], timeout=300.0, workers=1, max_failure_share=1.0)
    with made.begin(3) as scoring:
        scoring.add([request("1")] * 3)
        while not (tmp_path / "busy").exists():
            time.sleep(0.01)
        made.close()
        assert all(r.failure for r in scoring.finish())  # which would wait for the rewards


def test_the_share_is_of_one_call_not_of_the_run(scorer, reward_file):
    made = scorer([reward_file], max_failure_share=0.5)
    for _ in range(3):
        made.score([request("0"), request("1")])
    assert made.failures == 3


def test_a_server_gets_upstreams_payload_and_gives_upstreams_dictionary(scorer):
    with server(echo) as (url, calls):
        results = scorer([url]).score([request(str(i)) for i in range(20)])
    assert [r.reward for r in results] == list(range(20))
    assert (results[0].score, results[0].extra) == (1.0, {"n": 7.0})
    assert {"query": ["a prompt and a response"], "prompts": ["a prompt"], "labels": ["0"]} in calls
    assert len(calls) == 20


def test_servers_take_turns(scorer):
    with server(echo) as (one, first), server(echo) as (two, second):
        scorer([one, two]).score([request("1")] * 10)
    assert len(first) == len(second) == 5


def test_a_server_may_recover(scorer):
    with server(lambda n, body: echo(n, body) if n > 2 else (500, "")) as (url, calls):
        [result] = scorer([url]).score([request("1")])
    assert (result.reward, result.failure, len(calls)) == (1.0, None, 3)


def test_a_retry_goes_to_the_next_server(scorer):
    with server(lambda n, body: (503, "")) as (bad, _), server(echo) as (good, calls):
        results = scorer([bad, good]).score([request("1")] * 4)
    assert [r.failure for r in results] == [None] * 4
    assert len(calls) == 4


def test_a_call_that_takes_too_long_fails_alone(scorer, monkeypatch):
    monkeypatch.setattr(http_rewards, "_TRIES", 1)
    over = threading.Event()

    def answer(n, body):
        if body["labels"] == ["0"]:
            over.wait(30)
        return echo(n, body)

    with server(answer) as (url, _):
        hung, right = scorer([url], timeout=2, max_failure_share=0.5).score([request("0"), request("5")])
        over.set()
    assert hung.failure == f"{url}: no answer within 2 s (1 tries)" and (right.reward, right.failure) == (5.0, None)


def test_a_server_that_is_not_there_stops_the_run_without_trying_everything(scorer):
    with server(echo) as (url, _):
        pass
    with pytest.raises(RewardFailures, match="were not tried any more"):
        scorer([url]).score([request("1")] * 500)


def test_servers_can_be_asked_from_a_running_event_loop(scorer):
    async def inside(made):
        return made.score([request("3")])

    with server(echo) as (url, _):
        [result] = asyncio.run(inside(scorer([url])))
    assert result.reward == 3.0


def test_good_sources_pass_the_check(reward_file):
    check_reward_source(RewardOptions(), None)
    check_reward_source(RewardOptions(), [reward_file])
    check_reward_source(RewardOptions(), ["http://127.0.0.1:5000/get_reward", "https://rewards.example"])
    check_reward_source(RewardOptions(functions="math,format", weights="1,0.5"), None)


@pytest.mark.parametrize(
    ("options", "urls", "message"),
    [
        ({"functions": "accuracy"}, None, "unknown reward 'accuracy'; the shipped rewards are math, format, cosine"),
        ({}, ["nowhere.py"], "nowhere.py: there is no file"),
        ({}, ["one.py", "two.py"], "a Python file must be the only one given"),
        ({}, ["127.0.0.1:5000"], "neither a Python file nor a URL"),
        ({}, ["http://"], "neither a Python file nor a URL"),
        ({}, ["http://127.0.0.1:port/"], "neither a Python file nor a URL"),
        ({}, ["http://127.0.0.1:5000", "reward.py"], "address 2 is neither a Python file nor a URL"),
    ],
)
def test_a_bad_source_is_refused_before_the_run(options, urls, message):
    with pytest.raises(UsageError, match=message):
        check_reward_source(RewardOptions(**options), urls)
