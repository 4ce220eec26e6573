"""Whose work it is that keeps a machine busy beside a run."""

import subprocess
import sys
import time

import psutil
import pytest

from lab import attempt
from lab.attempt import Attempt, Neighbours

BURN = "import time\nwhile time.process_time() < 30: pass"
IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"


@pytest.fixture
def stranger():
    process = subprocess.Popen([sys.executable, "-c", BURN])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_neighbours_are_the_processes_that_are_no_descendants_of_the_attempt(tmp_path, monkeypatch, stranger):
    everything = attempt._cpu_times
    run = Attempt([sys.executable, "-c", IN_A_CHILD], tmp_path / "log.txt")
    monkeypatch.setattr(Neighbours, "EVERY", 0.0)
    try:
        while not (burning := psutil.Process(run.root.pid).children()):
            time.sleep(0.01)
        [child] = burning
        # Other work of this machine is left out.
        monkeypatch.setattr(attempt, "_cpu_times", lambda: {p: s for p, s in everything().items() if p in {child, stranger}})
        neighbours, before = Neighbours(run), {p: sum(p.cpu_times()[:2]) for p in (child, stranger)}
        while any(sum(p.cpu_times()[:2]) < before[p] + 0.2 for p in before):  # noqa: B023
            neighbours.look()
        neighbours.look()
        spent = sum(stranger.cpu_times()[:2]) - before[stranger]
    finally:
        run.kill()
    # The clock of a process ticks in hundredths of a second, and sums of them are rounded.
    assert 0.2 <= round(neighbours.seconds, 2) <= round(spent + 0.02, 2)
    assert neighbours.cores == pytest.approx(neighbours.seconds / (neighbours.looked - neighbours.began))
