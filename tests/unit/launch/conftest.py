"""A model to damage, and a Ray that is none."""

import shutil
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from lab.testbed import model_dir
from openrlhf_rpo.launch import cluster


@pytest.fixture
def model(tmp_path):
    """A copy of the testbed's model that a test may damage."""
    return Path(shutil.copytree(model_dir("main"), tmp_path / "copy"))


@pytest.fixture
def fake_ray(monkeypatch):
    """``import ray`` gives this; ``resources`` is what the cluster has."""
    fake = MagicMock(resources={"CPU": 1.0, "GPU": 2.0})
    fake.cluster_resources = fake.available_resources = lambda: fake.resources
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(cluster.platform, "prepare", lambda: None)
    return fake
