"""The benchmarks' command."""

import os
import signal
import time

import pytest

from lab import bench, frontier


def test_a_benchmark_that_is_terminated_ends_as_by_ctrl_c_so_that_its_runs_end_too(monkeypatch):
    def run(args):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setattr(frontier, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.main(["frontier"])
    finally:
        signal.signal(signal.SIGTERM, before)
