"""The differences between two runs: databases row by row, weights and optimizer states bit for bit.

    python -m lab.compare CHECKPOINTS MODEL CHECKPOINTS MODEL

Times, shares of time, and paths are ignored. Meant for runs with ``--train.full_determinism_enable``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from sqlalchemy import MetaData, create_engine, select

_TIMES = ("timing/", "eval_seconds", "rpo/rollout_busy", "rpo/train_busy")
_PLAIN = (int, float, str, bytes, type(None))
_DEEPSPEEDS_OWN = {"ds_config", "ds_version"}


def differences(checkpoints: Path, model: Path, other_checkpoints: Path, other_model: Path) -> list[str]:
    """A sentence per difference: database, final weights, then every tensor of the last checkpoints."""
    found = list(_compare("database", database(checkpoints), database(other_checkpoints)))
    found += _compare("final weights", weights(model), weights(other_model))
    for name in sorted({file.parent.name for c in (checkpoints, other_checkpoints) for file in _some(c, "_*/latest")}):
        last, other = (c / name for c in (checkpoints, other_checkpoints))  # of the policy or a critic
        if last.exists() and other.exists():
            found += checkpoint_differences(*(one / (one / "latest").read_text() for one in (last, other)))
        else:
            found.append(f"{name} is only in the {'first' if last.exists() else 'second'}")
    return found


def checkpoint_differences(folder: Path, other: Path) -> list[str]:
    """A sentence per difference between two checkpoints."""
    return list(_compare("last checkpoint", checkpoint(folder), checkpoint(other)))


def database(checkpoints: Path) -> dict[str, Any]:
    """table -> primary key -> row, for every table of the path cache."""
    engine = create_engine(f"sqlite:///{checkpoints}/rpo_cache.db")
    tables = MetaData()
    tables.reflect(engine)
    content = {}
    with engine.connect() as connection:
        for table in tables.sorted_tables:
            keys = [column.name for column in table.primary_key] or list(table.columns.keys())
            rows = [_without_times(dict(row)) for row in connection.execute(select(table)).mappings()]
            content[table.name] = {str([row[key] for key in keys]): row for row in rows}
    content["runs"].pop("['model']", None)  # the path of the base model
    engine.dispose()
    return content


def weights(model: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a saved model."""
    return {name: tensor for file in _some(model, "*.safetensors") for name, tensor in load_file(file).items()}


def checkpoint(folder: Path) -> dict[str, Any]:
    """DeepSpeed's files: module, optimizer, scheduler, the run's own states. They are trusted."""
    return {f.name: torch.load(f, map_location="cpu", weights_only=False) for f in _some(folder, "*.pt")}


def _some(folder: Path, pattern: str) -> list[Path]:
    """The matching files, at least one: two empty lists would compare equal."""
    if not (files := sorted(folder.glob(pattern))):
        raise FileNotFoundError(f"{folder}: no {pattern}")
    return files


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    # The checksum includes times.
    row = {name: value for name, value in row.items() if name not in ("created_at", "checksum")}
    if isinstance(row.get("metrics"), dict):
        row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith(_TIMES)}
    return row


def _compare(where: str, a: Any, b: Any) -> Iterator[str]:
    """A sentence per difference between two nested values."""
    if isinstance(a, dict) and isinstance(b, dict):
        yield from _compare_dicts(where, a, b)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{where}: {len(a)} and {len(b)} items"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _compare(f"{where}[{i}]", x, y)
    elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            yield f"{where}: tensors differ"
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        yield from _compare(where, a.tolist(), b.tolist())
    elif isinstance(a, _PLAIN) or isinstance(b, _PLAIN):
        if a != b and not (a != a and b != b):  # NaN equals NaN here
            yield f"{where}: {str(a)[:60]!r} and {str(b)[:60]!r}"
    elif type(a) is not type(b):
        yield f"{where}: {type(a).__name__} and {type(b).__name__}"
    elif hasattr(a, "__dict__"):
        yield from _compare(where, vars(a), vars(b))
    elif a != b:
        yield f"{where}: {str(a)[:60]} and {str(b)[:60]}"


def _compare_dicts(where: str, a: dict[Any, Any], b: dict[Any, Any]) -> Iterator[str]:
    for key in (a.keys() | b.keys()) - _DEEPSPEEDS_OWN:
        if key not in a or key not in b:
            yield f"{where}: {key} is only in the {'first' if key in a else 'second'}"
        else:
            yield from _compare(f"{where} {key}", a[key], b[key])


def main() -> int:
    """Print the differences. Exit status 0 without any, else 1."""
    found = differences(*map(Path, sys.argv[1:5]))
    print("\n".join(found) or "no differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
