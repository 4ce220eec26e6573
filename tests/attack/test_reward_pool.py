"""Rewards that answer with anything but a number, in real processes: each costs its own sample, and leaves no process."""

import time
from contextlib import closing
from pathlib import Path

import pytest

from openrlhf_rpo.rollout import reward_pool
from openrlhf_rpo.rollout.reward_call import RewardFile, RewardRequest
from openrlhf_rpo.rollout.reward_pool import RewardLoadError, RewardPool

REWARD = '''import fcntl, json, os, pickle, signal, socket, subprocess, sys, time

class Text(str):
    def __str__(self):
        return self
    def __reduce__(self):
        return (exec, ("raise KeyError('unpickled')",))

class Number(float):
    def __float__(self):
        return self
    def __reduce__(self):
        return (exec, ("raise MemoryError",))

class Raises(dict):
    def __contains__(self, name):
        raise MemoryError("no")

class Exit(BaseException):
    def __str__(self):
        raise SystemExit(0)

def channel():
    """The worker's end of its socket pair."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                return number
        except OSError:
            pass

def send(data):
    os.write(channel(), data)
    return {"rewards": 1}

def start(how):
    command = f"import os, time; open({os.environ['PIDS']!r}, 'a').write(f'{{os.getpid()}}\\\\n'); time.sleep(600)"
    if how == "subprocess":
        subprocess.Popen([sys.executable, "-c", command], start_new_session=True)
        return
    if os.fork() == 0:
        os.setsid()
        if how == "daemon" and os.fork():
            os._exit(0)
        for signal_ in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signal_, signal.SIG_IGN)
        exec(command)

def reward_func(queries, prompts, labels):
    label = labels[0]
    what, _, how = label.partition(" ")
    number = sys._getframe(3).f_locals["number"]  # of the request
    if what == "start":
        start(how)
        while not os.path.exists(os.environ["PIDS"]):
            time.sleep(0.02)
        os._exit(5) if how == "then-die" else time.sleep(600)
    return {
        "good": lambda: {"rewards": 1},
        "name": lambda: {"rewards": 1, "extra_logs": {Text("a"): 1}},
        "number": lambda: {"rewards": Number(1), "extra_logs": {"a": Number(2)}},
        "raises": Raises,
        "many": lambda: {"rewards": 1, "extra_logs": {f"name {i}": 1 for i in range(200_000)}},
        "pickle": lambda: send(pickle.dumps(Text("a"))),
        "half": lambda: (send(b'[0, {"rewards"'), time.sleep(600)),
        "header": lambda: (send(bytes([0, 255, 255, 255])), time.sleep(600)),
        "endless": lambda: [send(b"x" * 65536) for _ in range(10**6)],
        "deep": lambda: send(b"[" * 100_000 + b"\\n"),
        "line": lambda: send(b"\\n"),
        "text": lambda: send(b"[1, 2, 3]\\n"),
        "null": lambda: send(b"null\\n"),
        "NaN": lambda: send(b'[%d, {"rewards": NaN}]\\n' % number),
        "huge": lambda: send(b'[%d, {"rewards": %s}]\\n' % (number, b"9" * 400)),
        "wrong": lambda: send(b'[%d, {"reward": 1}]\\n' % number),
        "list": lambda: send(b'[%d, [1]]\\n' % number),
        "close": lambda: os.closerange(3, 100),
        "shutdown": lambda: socket.socket(fileno=channel()).shutdown(socket.SHUT_RDWR),
        "signal": lambda: os.kill(os.getpid(), 40),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "exception": lambda: (_ for _ in ()).throw(Exit),
    }[what]()
'''
HARMLESS = ("name", "number")
GUILTY = [
    *("raises", "many", "pickle", "half", "header", "endless", "deep", "line", "text", "null", "NaN", "huge", "wrong"),
    *("list", "close", "shutdown", "signal", "stop", "exception"),
]


@pytest.fixture(scope="module")
def pids(tmp_path_factory):
    """Where a process that a reward starts writes its number."""
    return tmp_path_factory.mktemp("pids") / "pids"


@pytest.fixture(scope="module")
def pool(tmp_path_factory, pids):
    file = tmp_path_factory.mktemp("reward") / "my_reward.py"
    file.write_text(REWARD)
    with pytest.MonkeyPatch.context() as patch, closing(RewardPool(RewardFile(str(file)), 1, 0.6, on_failure=-7)) as pool:
        patch.setenv("PIDS", str(pids))
        yield pool


@pytest.fixture
def score(pool):
    return lambda *labels: pool.score([RewardRequest("q", "", "", label, "", 1) for label in labels])


@pytest.mark.parametrize("label", GUILTY)
def test_an_answer_that_is_none_costs_only_its_own_sample(score, label):
    before, guilty, after = score("good", label, "good")
    assert (before.reward, guilty.reward, after.reward, after.failure) == (1, -7, 1, None) and guilty.failure


@pytest.mark.parametrize("label", HARMLESS)
def test_a_number_of_another_class_is_a_number(score, label):
    [result] = score(label)
    assert (result.reward, result.failure) == (1, None) and type(result.reward) is float


@pytest.mark.parametrize("how", ["subprocess", "session", "daemon", "then-die"])
def test_no_process_outlives_the_worker_that_started_it(pool, score, pids, how, monkeypatch):
    monkeypatch.setattr(pool, "timeout", 4)  # time to start a Python
    pids.unlink(missing_ok=True)
    [result] = score(f"start {how}")
    assert result.failure
    [pid] = map(int, pids.read_text().split())
    end = time.monotonic() + 2
    while runs(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not runs(pid)


def test_where_no_process_can_be_started_the_reward_fails_by_name(monkeypatch):
    def full(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(reward_pool.subprocess, "Popen", full)
    pool = RewardPool(RewardFile("my_reward.py"), workers=1, timeout=1)
    with pytest.raises(RewardLoadError, match="no process for the reward can be started: .*unavailable"):
        pool.check()


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
