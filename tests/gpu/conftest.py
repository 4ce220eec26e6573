"""Everything here needs one NVIDIA GPU and the ``gpu`` extra: ``make gpu-test``."""

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Collected everywhere, and skipped with a reason where torch sees no GPU."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("gpu")
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="torch sees no NVIDIA GPU on this host"))


@pytest.fixture(autouse=True)
def own_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command starts a Ray of its own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
