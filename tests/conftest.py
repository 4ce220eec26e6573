"""Settings of all tests."""

import os

import psutil
import pytest
from hypothesis import settings

# A test process has about a core to itself: a team of threads in each would only wait for the others'.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The machine may be busy; a slow example is no failure.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

RUN_BYTES = 8 * 2**30  # a test process and what it may have started: a training run, at most one on two Ray nodes


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: one process a core, as far as memory goes; Ray kills what it started on a host that is 95 % full."""
    return max(1, min(len(os.sched_getaffinity(0)), psutil.virtual_memory().available // RUN_BYTES))
