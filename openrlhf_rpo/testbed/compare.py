"""What differs between two runs: their databases row by row, their weights and optimizer states bit by bit.

    python -m openrlhf_rpo.testbed.compare CHECKPOINTS MODEL CHECKPOINTS MODEL

Times are left out, and what names a place on the disk. Meant for runs with ``--train.full_determinism_enable``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sqlalchemy import MetaData, create_engine, select

_TIMES = ("timing/", "eval_seconds")


def differences(checkpoints: Path, model: Path, other_checkpoints: Path, other_model: Path) -> list[str]:
    """One sentence a difference: database, final weights, then every tensor of the last checkpoint."""
    found = list(_compare("database", database(checkpoints), database(other_checkpoints)))
    found += _compare("final weights", weights(model), weights(other_model))
    last, other = (c / "_actor" / (c / "_actor" / "latest").read_text() for c in (checkpoints, other_checkpoints))
    found += _compare("last checkpoint", checkpoint(last), checkpoint(other))
    return found


def database(checkpoints: Path) -> dict[str, Any]:
    """table -> row's primary key -> row, of every table of the path cache."""
    engine = create_engine(f"sqlite:///{checkpoints}/rpo_cache.db")
    tables = MetaData()
    tables.reflect(engine)
    content = {}
    with engine.connect() as connection:
        for table in tables.sorted_tables:
            keys = [column.name for column in table.primary_key] or list(table.columns.keys())
            rows = [_without_times(dict(row)) for row in connection.execute(select(table)).mappings()]
            content[table.name] = {str([row[key] for key in keys]): row for row in rows}
    content["runs"].pop("['model']", None)  # where the base model lay
    engine.dispose()
    return content


def weights(model: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a saved model."""
    return {name: tensor for file in sorted(model.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def checkpoint(folder: Path) -> dict[str, Any]:
    """What DeepSpeed saved: module, optimizer, scheduler, the run's own states. The files are the run's own."""
    return {f.name: torch.load(f, map_location="cpu", weights_only=False) for f in sorted(folder.glob("*.pt"))}


def _without_times(row: dict[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in row.items() if name not in ("created_at", "checksum")}  # it covers times, too
    if isinstance(row.get("metrics"), dict):
        row["metrics"] = {k: v for k, v in row["metrics"].items() if not k.startswith(_TIMES)}
    return row


def _compare(where: str, a: Any, b: Any) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            if key in ("ds_config", "ds_version"):
                continue
            if key not in a or key not in b:
                yield f"{where}: {key} is only in the {'first' if key in a else 'second'}"
            else:
                yield from _compare(f"{where} {key}", a[key], b[key])
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _compare(f"{where}[{i}]", x, y)
    elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            yield f"{where}: tensors differ"
    elif isinstance(a, (int, float, str, bytes, type(None))) or isinstance(b, (int, float, str, bytes, type(None))):
        if a != b and not (a != a and b != b):  # NaN is itself here
            yield f"{where}: {str(a)[:60]!r} and {str(b)[:60]!r}"
    elif type(a) is not type(b):
        yield f"{where}: {type(a).__name__} and {type(b).__name__}"
    elif hasattr(a, "__dict__"):
        yield from _compare(where, vars(a), vars(b))


def main() -> int:
    """Exit status 0 when nothing differs, else 1 with the differences printed."""
    found = differences(*map(Path, sys.argv[1:5]))
    print("\n".join(found) or "no differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
