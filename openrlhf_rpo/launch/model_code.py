"""Refuses models with their own Python code before anything starts, by option and file.

``platform.guard`` stops such code in every process, wherever it comes from; this says so minutes earlier.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from openrlhf_rpo.errors import UsageError

CODE = ("custom_generate/generate.py", "adapter_config.json")  # run by transformers' generate(); names any model and module
FILES = (
    *("config.json", "tokenizer_config.json", "generation_config.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)


def refuse_model_code(args: SimpleNamespace) -> None:
    """Raises UsageError when a model has code and --rpo.trust_remote_code is false.

    Raises OSError or ValueError when a file cannot be read.
    """
    if args.rpo.trust_remote_code:
        return
    models = {"actor": args.actor, "critic": args.critic}
    if not args.reward.remote_url:  # otherwise no reward model is loaded
        models["reward"] = args.reward
    for name, path in [(name, options.model_name_or_path) for name, options in models.items()]:
        if path and (file := file_with_code(path)):
            raise UsageError(
                f"--{name}.model_name_or_path {path}: the model brings Python code of its own (by its {file}), "
                "which would run in every process. Read it, then add --rpo.trust_remote_code true"
            )


def file_with_code(model: str) -> str | None:
    """The first file of a model (a folder or on the hub) that is code, or names code to load; None without one."""
    from transformers.utils import cached_file

    if Path(model).is_dir():
        found = [*(Path(model, name) for name in CODE), *sorted(Path(model).rglob("*.json"))]
        files = {str(file.relative_to(model)): file for file in found if file.is_file()}
    else:
        cached = {name: cached_file(model, name, _raise_exceptions_for_missing_entries=False) for name in (*CODE, *FILES)}
        files = {name: Path(file) for name, file in cached.items() if file is not None}
    return next((name for name, file in files.items() if name in CODE or names_code(name, file)), None)


def names_code(name: str, file: Path) -> bool:
    """Whether a JSON file has an ``auto_map`` at any depth. Raises OSError, or ValueError if it is no JSON."""
    found = []
    try:
        json.loads(file.read_text(encoding="utf-8"), object_hook=lambda value: found.append("auto_map" in value))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {name} is no JSON that can be read ({error})") from error
    return any(found)
