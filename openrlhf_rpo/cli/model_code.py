"""Models that bring Python code of their own (``auto_map``): OpenRLHF would run it in every process without asking."""

import json
from pathlib import Path
from types import SimpleNamespace

from openrlhf_rpo.upstream import UsageError

FILES = (
    *("config.json", "tokenizer_config.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)


def refuse_model_code(args: SimpleNamespace) -> None:
    """Raises UsageError when a model of this command has code and nobody asked for it; OSError when it cannot be read."""
    if args.rpo.trust_remote_code:
        return
    models = {name: getattr(args, name).model_name_or_path for name in ("actor", "critic", "reward")}
    for name, paths in models.items():
        if name == "reward" and args.reward.remote_url:  # no reward model is loaded
            continue
        for path in (paths or "").split(","):
            if path and (file := file_with_code(path)):
                raise UsageError(
                    f"--{name}.model_name_or_path {path}: the model brings Python code of its own (auto_map in its {file}), "
                    "which would run in every process. Read it, then add --rpo.trust_remote_code true"
                )


def file_with_code(model: str) -> str | None:
    """The first of a model's JSON files, in a folder or on the hub, that names code to load; None when none does."""
    from transformers.utils import cached_file

    for name in FILES:
        file = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
        if file is not None and "auto_map" in json.loads(Path(file).read_text(encoding="utf-8")):
            return name
    return None
