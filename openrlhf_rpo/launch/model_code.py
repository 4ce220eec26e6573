"""Refuses models with their own Python code: OpenRLHF would run it in every process without asking."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.errors import UsageError

GENERATE = "custom_generate/generate.py"  # run by transformers' generate()
FILES = (
    *("config.json", "tokenizer_config.json", "generation_config.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)


def refuse_model_code(args: SimpleNamespace) -> None:
    """Raises UsageError when a model has code and --rpo.trust_remote_code is false; OSError when it cannot be read."""
    if args.rpo.trust_remote_code:
        return
    for name in ("actor", "critic", "reward"):
        if name == "reward" and args.reward.remote_url:  # no reward model is loaded
            continue
        for path in (getattr(args, name).model_name_or_path or "").split(","):
            if path and (file := file_with_code(path)):
                raise UsageError(
                    f"--{name}.model_name_or_path {path}: the model brings Python code of its own (by its {file}), "
                    "which would run in every process. Read it, then add --rpo.trust_remote_code true"
                )


def file_with_code(model: str) -> str | None:
    """The first file of a model (a folder or on the hub) that is code, or a JSON file that names code to load; or None."""
    from transformers.utils import cached_file

    if Path(model).is_dir():
        files = {str(file.relative_to(model)): file for file in sorted(Path(model).rglob("*.json"))}
        code = Path(model, GENERATE)
        files |= {GENERATE: code} if code.is_file() else {}
    else:
        found = {name: cached_file(model, name, _raise_exceptions_for_missing_entries=False) for name in (GENERATE, *FILES)}
        files = {name: Path(file) for name, file in found.items() if file is not None}
    for name, file in files.items():
        if name == GENERATE or names_code(json.loads(file.read_text(encoding="utf-8"))):
            return name
    return None


def names_code(value: Any) -> bool:
    """Whether a JSON value has an ``auto_map`` at any depth."""
    if isinstance(value, dict):
        return "auto_map" in value or any(map(names_code, value.values()))
    return isinstance(value, list) and any(map(names_code, value))
