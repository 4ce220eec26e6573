"""A training command that can be watched, and killed with all its processes, including Ray's daemons."""

import contextlib
import os
import re
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import psutil

STEP = re.compile(r"\bstep (\d+)/\d+ ")  # Ray may color the text before it
MARK = "OPENRLHF_RPO_ATTEMPT"  # in the environment of every process of an attempt


class Attempt:
    """One start of a training command with all its processes; its output is appended to ``log``."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log_file = log
        self.mark = uuid.uuid4().hex
        self.ray_folder = Path(f"/tmp/rk{self.mark[:8]}")  # short, because of the length limit of socket paths
        self.ray_folder.mkdir()
        self.started = time.perf_counter()
        self.log = log.open("ab")
        self.log_start = self.log.tell()
        # By default Ray lowers its workers' priority, below that of other attempts on the host, and starts spare workers.
        usual = {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
        env = {**usual, **os.environ, MARK: self.mark, "RAY_TMPDIR": str(self.ray_folder)}
        self.root = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=env)
        self.actors: list[psutil.Process] = []
        self.looked = 0.0

    def output(self) -> str:
        """The output of this start so far."""
        with self.log_file.open("rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")

    def steps(self) -> list[int]:
        """The steps that this start has finished so far."""
        return [int(step) for step in STEP.findall(self.output())]

    def never_started(self) -> bool:
        """Whether Ray failed to start within its 30 seconds, before the run began."""
        return self.root.poll() not in (None, 0) and "timed out during startup" in self.output()

    def calls(self) -> set[str]:
        """What trainer and policy actor are executing, such as "policy.fit", from Ray's process titles."""
        if len(self.actors) < 2 and time.perf_counter() - self.looked > 0.5 and self.root.poll() is None:
            self.looked = time.perf_counter()
            tree = psutil.Process(self.root.pid).children(recursive=True)
            self.actors = [p for p in tree if title_of(p).startswith(("ray::_RPOTrainer", "ray::_RPOPolicyActor"))]
        titles = [title_of(p) for p in self.actors]
        words = [title.removeprefix("ray::_RPO").split(".") for title in titles if "." in title]
        return {f"{'policy' if actor == 'PolicyActor' else 'trainer'}.{call.split()[0]}" for actor, call in words}

    def kill(self) -> None:
        """SIGKILL the process tree of the command and its orphans until none is alive."""
        known: dict[int, psutil.Process] = {}
        if self.root.poll() is None:
            root = psutil.Process(self.root.pid)
            known = {p.pid: p for p in [root, *root.children(recursive=True)]}
        deadline = time.perf_counter() + 30
        while True:
            for process in known.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self.root.poll()
            # Orphans are found by their environment, or, if a process title overwrote it, as children of another orphan.
            marked = [p for p in psutil.process_iter() if self._marked(p)]
            known |= {p.pid: p for m in marked for p in [m, *_children(m)]}
            if not any(_alive(p) for p in known.values()):
                break
            if time.perf_counter() > deadline:
                raise RuntimeError(f"processes that cannot be killed: {[p for p in known.values() if _alive(p)]}")
            time.sleep(0.05)
        self.close()

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark
        except (psutil.Error, OSError):
            return False

    def close(self) -> None:
        """Wait for the end and remove Ray's folder."""
        self.root.wait()
        self.log.close()
        shutil.rmtree(self.ray_folder, ignore_errors=True)


class Neighbours:
    """The work of processes on this host other than an attempt's: whether a run had it to itself.

    Ray's workers of a cluster that ran before the attempt are neighbours, too.
    """

    EVERY = 5.0
    """Seconds between two looks at all processes, which take 20 ms."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.began = self.looked = time.perf_counter()
        self.times = _cpu_times()
        self.seconds = 0.0
        """CPU time of the neighbours so far."""

    def look(self) -> None:
        """Add the CPU time since the last look; at most every ``EVERY`` seconds."""
        if time.perf_counter() - self.looked < self.EVERY or self.attempt.root.poll() is not None:
            return
        self.looked, before = time.perf_counter(), self.times
        self.times = _cpu_times()
        root = psutil.Process(self.attempt.root.pid)
        ours = {psutil.Process(), root, *_children(root)}
        self.seconds += sum(cpu - before.get(p, 0.0) for p, cpu in self.times.items() if p not in ours)

    @property
    def cores(self) -> float:
        """How many cores the neighbours kept busy on average, from the attempt's start to the last look."""
        return self.seconds / max(self.looked - self.began, self.EVERY)


def _cpu_times() -> dict[psutil.Process, float]:
    """Seconds that each process of this host has computed."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process] = times.user + times.system
    return found


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def title_of(process: psutil.Process) -> str:
    """The command line, which Ray overwrites with the current call; empty if the process has ended."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
