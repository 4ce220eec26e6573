"""Rewards in real processes that hang, die, and answer nonsense. ``misbehave`` reads its orders from the label."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from openrlhf_rpo.rollout.reward_call import RewardFile, RewardRequest, ShippedRewards
from openrlhf_rpo.rollout.reward_pool import NOT_TRIED, RewardLoadError, RewardPool

MISBEHAVE = """import os, signal, subprocess, sys, threading, time

def reward_func(queries, prompts, labels):
    [query], [prompt], [label] = queries, prompts, labels
    if label == "hang":
        time.sleep(600)
    if label == "exit":
        os._exit(3)
    if label == "exit 0":
        os._exit(0)
    if label == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if label == "sys.exit":
        sys.exit("bye")
    if label == "raise":
        raise ValueError("no such answer")
    if label == "none":
        return None
    if label == "nan":
        return {"rewards": float("nan")}
    if label == "two":
        return {"rewards": [1.0, 2.0]}
    if label == "fork":
        os.fork()
    if label == "leave alarm":
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    if label == "stop later":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    if label == "die later":
        threading.Timer(0.2, os._exit, (7,)).start()
    if label == "alarm":
        def too_late(*_):
            raise TimeoutError("the alarm works")
        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(600)
    if label == "print":
        print("hello"); os.write(1, b"there"); subprocess.run(["echo", "child"]); sys.stdin.read()
    if label == "modules":
        return {"rewards": float(bool({"torch", "openrlhf", "ray", "sympy", "math_verify"} & set(sys.modules)))}
    if label == "pid":
        return {"rewards": os.getpid()}
    if label == "clear":  # what a careful author does before running a model's code
        cleared = os.environ["CLEARED"]; os.environ.clear(); open(cleared, "w").close()
        time.sleep(600)
    return {"rewards": float(label), "scores": len(query), "extra_logs": {"prompt": len(prompt)}}
"""


def request(label, question_id="q", query="12345", response=""):
    return RewardRequest(question_id, query, "123", label, response, 10)


@pytest.fixture
def reward_file(tmp_path):
    path = tmp_path / "my_reward.py"
    path.write_text(MISBEHAVE)
    return RewardFile(str(path))


@pytest.fixture
def make_pool(reward_file):
    pools = []

    def make(source=reward_file, workers=1, timeout=5.0, **options):
        pools.append(RewardPool(source, workers, timeout, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(pid, seconds):
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def test_results_come_in_order_from_all_workers(make_pool):
    results = make_pool(workers=2).score([request(str(i)) for i in range(50)])
    assert [r.reward for r in results] == list(range(50))
    assert {(r.score, r.failure) for r in results} == {(5.0, None)}
    assert results[0].extra == {"prompt": 3.0}


def test_no_requests_no_results(make_pool):
    assert make_pool().score([]) == []


@pytest.mark.parametrize(
    ("label", "cause"),
    [
        ("hang", "no answer within 2 s; its process was killed"),
        ("exit", "its process exited with code 3"),
        ("exit 0", "its process exited with code 0"),
        ("segfault", "its process died of SIGSEGV"),
        ("sys.exit", "SystemExit: bye (my_reward.py, line 14)"),
        ("raise", "ValueError: no such answer (my_reward.py, line 16)"),
        ("none", "ValueError: a dict with 'rewards' is needed, not NoneType"),
        ("nan", "ValueError: 'rewards' is nan, not a finite number of float32"),
        ("two", "ValueError: 'rewards' holds 2 values for one query"),
        ("alarm", "TimeoutError: the alarm works (my_reward.py, line 33)"),
    ],
)
def test_only_the_guilty_request_fails_and_says_why(make_pool, label, cause):
    """Defect 10 of the reference: a reward of None breaks the batch."""
    pool = make_pool(timeout=2, on_failure=-1.0)
    results = pool.score([request("1"), request(label), request("2")])
    assert [r.reward for r in results] == [1.0, -1.0, 2.0]
    assert [r.score for r in results] == [5.0, -1.0, 5.0]
    assert [r.failure for r in results] == [None, cause, None]


def test_a_failure_does_not_cost_the_process_unless_it_must(make_pool):
    pool = make_pool(timeout=2)
    first, _, second, _, third = pool.score([request(x) for x in ("pid", "raise", "pid", "hang", "pid")])
    assert first.reward == second.reward != third.reward
    assert gone_within(int(first.reward), 5)


@pytest.mark.parametrize("label", ["leave alarm", "die later", "stop later"])
def test_what_a_call_leaves_behind_does_not_stop_the_pool(make_pool, monkeypatch, label):
    if label == "stop later":  # elsewhere the large request must arrive
        monkeypatch.setattr("openrlhf_rpo.rollout.reward_pool._SEND_SECONDS", 0.5)
    pool = make_pool(timeout=2)
    pool.score([request(label)])
    time.sleep(0.5)
    large = "x" * 5_000_000  # does not fit the socket's buffer
    last = [r.failure for r in pool.score([request("1", query=large), request("2")])]
    stopped = "no answer within 2 s; its process was killed"
    assert last == [stopped if label == "stop later" else None, None]


def test_a_second_answer_of_a_fork_is_not_taken_for_the_next(make_pool):
    """It comes whenever the other process has its turn, and costs one request at most: the pool goes on."""
    _, *results = make_pool().score([request(x) for x in ("fork", "1", "2", "3", "4")])
    assert all(r.failure or r.reward == i for i, r in enumerate(results, 1))
    assert [r.failure for r in results if r.failure] in ([], ["answered twice; its process was ended"])


def test_output_and_input_of_the_reward_do_not_touch_the_channel(make_pool, capfd):
    results = make_pool().score([request("print"), request("2")])
    assert results[0].failure.startswith("ValueError: could not convert")  # float("print") at its end
    assert results[1].reward == 2.0
    captured = capfd.readouterr()
    assert captured.out == "" and "hello" in captured.err and "there" in captured.err and "child" in captured.err


def test_a_worker_loads_nothing_heavy(make_pool):
    [result] = make_pool().score([request("modules")])
    assert (result.reward, result.failure) == (0.0, None)


def test_after_too_many_failures_the_rest_is_not_tried(make_pool):
    results = make_pool().score([request("1"), *[request("raise")] * 3, request("2")], max_failures=1)
    assert [r.failure == NOT_TRIED for r in results] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("def reward_func(:", "SyntaxError: invalid syntax (my_reward.py, line 1)"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package' (my_reward.py, line 1)"),
        ("reward = 1", "defines no function reward_func(queries, prompts, labels)"),
        ("import os; os._exit(4)", "its process exited with code 4"),
        ("import time; time.sleep(600)", "no answer within 1 s; its process was killed"),
    ],
)
def test_a_file_that_cannot_be_loaded_fails_every_request_once(make_pool, tmp_path, text, cause):
    (tmp_path / "my_reward.py").write_text(text)
    pool = make_pool(start_timeout=1 if "sleep" in text else 30)
    with pytest.raises(RewardLoadError) as caught:
        pool.check()
    assert cause in str(caught.value)
    started = time.monotonic()
    failures = {r.failure for r in pool.score([request("1")] * 100)}
    assert failures == {str(caught.value)}
    assert time.monotonic() - started < 10


SLOW_TO_LOAD = """import os, pathlib, time
while pathlib.Path(__file__).with_name("slow").exists():
    time.sleep(0.01)

def reward_func(queries, prompts, labels):
    return {"rewards": os.getpid()}
"""


def test_a_batch_that_others_complete_does_not_wait_for_a_process_that_loads(make_pool, tmp_path):
    (tmp_path / "my_reward.py").write_text(SLOW_TO_LOAD)
    pool = make_pool(workers=2, start_timeout=60)
    for slot in pool._slots:
        slot.ready()
    killed, other = (slot.process for slot in pool._slots)
    (tmp_path / "slow").touch()
    killed.kill()
    killed.wait()
    started = time.monotonic()
    for _ in range(2):
        assert [r.reward for r in pool.score([request("1")] * 4)] == [other.pid] * 4
        loading = pool._slots[0].process
    assert time.monotonic() - started < 20
    (tmp_path / "slow").unlink()
    assert pool._slots[0].ready() and pool._slots[0].process is loading  # it went on


def test_closing_ends_the_wait_for_a_process_that_loads(make_pool, tmp_path):
    (tmp_path / "my_reward.py").write_text(SLOW_TO_LOAD)
    (tmp_path / "slow").touch()
    pool, results = make_pool(start_timeout=600), []
    thread = threading.Thread(target=lambda: results.extend(pool.score([request("1")])))
    thread.start()
    time.sleep(0.5)
    pool.close()
    thread.join(20)
    assert [bool(r.failure) for r in results] == [True]


def test_shipped_rewards_run_in_the_pool_and_count_tokens(make_pool):
    pool = make_pool(ShippedRewards("math,cosine", "1,1"), timeout=20)
    right, wrong = pool.score([request("42", response=r"\boxed{\frac{84}{2}}"), request("42", response="none")])
    # accuracy + cosine at 10 of 1000 tokens
    assert (right.reward, right.score) == (pytest.approx(1.99988, abs=1e-5), 1.0)
    assert (wrong.reward, wrong.score) == (pytest.approx(-0.99988, abs=1e-5), 0.0)


def test_a_large_comparison_is_wrong_not_a_failure(make_pool):
    [result] = make_pool(ShippedRewards("math"), timeout=20).score([request("42", response=r"\boxed{9^{9^{9}}}")])
    assert (result.reward, result.failure) == (0.0, None)


def test_warm_up_starts_every_process_and_close_ends_them(make_pool):
    pool = make_pool(workers=2)
    pool.warm_up()
    pids = [slot.process.pid for slot in pool._slots]
    assert len(set(pids)) == 2 and all(map(alive, pids))
    pool.close()
    assert not any(map(alive, pids))


def test_works_in_a_thread(make_pool):
    pool, results = make_pool(timeout=2), []
    labels = ("alarm", "hang", "2")
    thread = threading.Thread(target=lambda: results.extend(pool.score([request(x) for x in labels])))
    thread.start()
    thread.join(20)
    assert [r.failure and r.failure.split()[0] for r in results] == ["TimeoutError:", "no", None]


BENEATH = """
import multiprocessing, sys
from openrlhf_rpo.rollout.reward_call import RewardFile, RewardRequest
from openrlhf_rpo.rollout.reward_pool import RewardPool

def score(file):
    def ask(pool, *labels):
        return pool.score([RewardRequest("q", "", "", label, "", 1) for label in labels])

    pool = RewardPool(RewardFile(file), workers=2, timeout=2)
    print(*("ok" if r.failure is None else "failed" for r in ask(pool, "1", "hang", "exit", "2")), flush=True)
    print(multiprocessing.current_process().pid, int(ask(pool, "pid")[0].reward), flush=True)
    ask(RewardPool(RewardFile(file), workers=1, timeout=600), "clear")

print("main", flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=score, args=(sys.argv[1],), daemon=True)
    child.start()
    child.join()
"""


def test_works_beneath_another_process_and_dies_with_it(reward_file, tmp_path):
    """As beneath a Ray actor, which may be killed at any time; the parent's main module is not run again."""
    script = tmp_path / "beneath.py"
    script.write_text(BENEATH)
    cleared = tmp_path / "cleared"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CLEARED": str(cleared)}
    command = [sys.executable, str(script), reward_file.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True) as parent:
        lines = [parent.stdout.readline().strip() for _ in range(4)]
        child, worker = map(int, lines.pop().split())
        end = time.monotonic() + 60
        while not cleared.exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert cleared.exists()  # the last call hangs now
        hanging = [pid for pid in _children(child) if pid != worker]
        os.kill(child, signal.SIGKILL)
        rest = parent.stdout.read()
    assert lines == ["main", "main", "ok failed failed ok"] and rest == ""
    assert hanging and all(gone_within(pid, 10) for pid in [worker, *hanging])


def _children(parent):
    """Of every thread of a process."""
    lists = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for children in lists for pid in children.read_text().split()]
