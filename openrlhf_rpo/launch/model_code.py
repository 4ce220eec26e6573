"""Refuses models with their own Python code (``auto_map``): OpenRLHF would run it in every process without asking."""

import json
from pathlib import Path
from types import SimpleNamespace

from openrlhf_rpo.errors import UsageError

FILES = (
    *("config.json", "tokenizer_config.json"),
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
                    f"--{name}.model_name_or_path {path}: the model brings Python code of its own (auto_map in its {file}), "
                    "which would run in every process. Read it, then add --rpo.trust_remote_code true"
                )


def file_with_code(model: str) -> str | None:
    """The first JSON file of a model (a folder or on the hub) that names code to load, or None."""
    from transformers.utils import cached_file

    for name in FILES:
        file = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        if file is not None and "auto_map" in json.loads(Path(file).read_text(encoding="utf-8")):
            return name
    return None
