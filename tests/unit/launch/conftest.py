"""A model to damage."""

import shutil
from pathlib import Path

import pytest

from lab.testbed import model_dir


@pytest.fixture
def model(tmp_path):
    """A copy of the testbed's model that a test may damage."""
    return Path(shutil.copytree(model_dir("main"), tmp_path / "copy"))
