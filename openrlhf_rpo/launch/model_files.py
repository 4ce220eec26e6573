"""Checks a model's folder before transformers reads it: broken files, by name, and weights cut, NaN or of another model.

Only the weights' headers and the first values of each tensor are read, so that a model of any size takes seconds.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.model_code import names_code

_OBJECTS = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
_INDEX = "model.safetensors.index.json"
_SAMPLE = 2**14  # bytes of each tensor
_LARGEST_HEADER = 10**8  # bytes, the limit of the format
_HEADS = ("lm_head.weight", "score.weight")
Tensors = dict[str, tuple[int, ...]]


def check_models(args: SimpleNamespace) -> None:
    """Every model of the run that is a folder. Raises UsageError."""
    for name in ("actor", "critic", "reward"):
        if name == "reward" and args.reward.remote_url:  # no reward model is loaded
            continue
        for path in (getattr(args, name).model_name_or_path or "").split(","):
            if path:
                _check_model(Path(path), f"--{name}.model_name_or_path {path}")


def _check_model(folder: Path, where: str) -> None:
    if not folder.exists():
        if str(folder) != where.rpartition(" ")[2] or folder.is_absolute() or len(folder.parts) > 2:
            raise UsageError(f"{where}: there is no such folder")
        return  # a name on the hub
    if not folder.is_dir():
        raise UsageError(f"{where}: it is a file; expected a model's folder, or its name on the hub")
    if not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir()):
        raise UsageError(f"{where}: no weights (.safetensors or .bin) in this folder")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{where}: no config.json in this folder")
    for name in _OBJECTS:
        if (folder / name).exists():
            _object(folder / name, where)
    shapes: Tensors = {}
    for file in _weight_files(folder, where):
        shapes |= _check_weights(file, where)
    if shapes:
        _compare(_expected(folder, where), shapes, where)


def _object(file: Path, where: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else error
        raise UsageError(f"{where}: {file.name} is not JSON ({reason}): save or download the model again") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {file.name} must hold a JSON object: save or download the model again")
    return value


# ── Weights ──


def _weight_files(folder: Path, where: str) -> list[Path]:
    """The .safetensors files that transformers will load."""
    if (folder / "model.safetensors").exists() or not (folder / _INDEX).exists():
        return sorted(folder.glob("model*.safetensors"))
    shards = _object(folder / _INDEX, where).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise UsageError(f"{where}: {_INDEX} has no weight_map of names: save or download the model again")
    files = [folder / name for name in sorted(set(shards.values()))]
    for file in files:
        if not file.is_file():
            raise UsageError(f"{where}: {_INDEX} names {file.name}, which is not there: the model is not complete")
    return files


def _check_weights(file: Path, where: str) -> Tensors:
    """The shapes in a .safetensors file. Raises UsageError if it is damaged, cut, or a tensor is not finite."""
    import torch

    size = file.stat().st_size
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        try:
            if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
                raise ValueError("it does not begin with a header, or is cut short")
            header = json.loads(source.read(length))
            tensors = {
                n: (t["dtype"], tuple(t["shape"]), t["data_offsets"]) for n, t in header.items() if n != "__metadata__"
            }
            end = 8 + length + max((offsets[1] for _, _, offsets in tensors.values()), default=0)
            if size != end:
                raise ValueError(f"it has {size:,} bytes, its header says {end:,}: it was cut short, or is damaged")
            kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
            for name, (kind, _, (first, last)) in tensors.items():
                if kind not in kinds or first == last:
                    continue
                source.seek(8 + length + first)
                values = torch.frombuffer(bytearray(source.read(min(_SAMPLE, last - first))), dtype=kinds[kind])
                if not torch.isfinite(values).all():
                    raise ValueError(f"{name} holds NaN or infinite weights; use an earlier checkpoint")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
            reason = error if type(error) is ValueError else "its header is damaged"
            raise UsageError(f"{where}: {file.name}: {reason}") from error
    return {name: shape for name, (_, shape, _) in tensors.items()}


def _expected(folder: Path, where: str) -> Tensors:
    """The shapes of the model that config.json describes, built without memory."""
    import torch
    from transformers import AutoConfig, AutoModel

    if names_code("config.json", folder / "config.json"):
        return {}  # built by the model's own code, which is not run here
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    except Exception as error:  # transformers raises whatever a wrong value leads to
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(f"{where}: config.json describes no model that can be built: {reason}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _compare(expected: Tensors, found: Tensors, where: str) -> None:
    """Raises UsageError where a tensor has another shape, or no name fits."""
    if not expected:
        return
    bare = {name.partition(".")[2]: shape for name, shape in found.items()} | found  # model.layers... as layers...
    common = expected.keys() & bare.keys()
    if not common:
        raise UsageError(
            f"{where}: its weights ({next(iter(found))}, ...) are not of the model in config.json "
            f"({next(iter(expected))}, ...)"
        )
    for name in sorted(common):
        if expected[name] != bare[name]:
            raise UsageError(
                f"{where}: {name} has shape {list(bare[name])}, by config.json it should be {list(expected[name])}"
            )
    others = [name for name in found if name not in expected and name.partition(".")[2] not in expected]
    missing = sorted(expected.keys() - common)
    if missing and all(name in _HEADS for name in others):  # with other names, transformers may convert them
        raise UsageError(
            f"{where}: {missing[0]} is not in its weights ({len(missing)} are missing): it would be drawn at random"
        )
