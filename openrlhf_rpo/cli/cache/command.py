"""``openrlhf-rpo cache``: its sub-commands and their arguments."""

import argparse
import importlib
from typing import Any

_CACHE = "a run's --ckpt.path, a cache file, or a database URL"
_QUESTION = "a question's id or text, or part of it"
_MODEL = "model folder or hub name with the cache's tokenizer (default: its run's)"

# name -> (module, function, help)
_COMMANDS = {
    "info": ("look", "info", "what a cache contains and which run it belongs to"),
    "show": ("show", "show", "a question's path as text, by the step that sampled each part, and its lineage"),
    "history": ("look", "history", "every visit to a question"),
    "stats": ("look", "stats", "reward, length and age of the cached paths, and the share replaced, by step"),
    "diff": ("look", "diff", "which paths changed between two steps"),
    "export": ("export", "export", "write the cached paths to a Parquet or JSONL file"),
    "import": ("initial", "import_", "make a run's initial cache from existing paths"),
    "verify": ("look", "verify", "decode every row and list the damaged ones"),
    "rollback": ("change", "rollback", "go back to a step: remove everything newer"),
    "prune": ("change", "prune", "remove the paths that STEP and later steps do not use"),
    "vacuum": ("change", "vacuum", "free the disk space of removed rows"),
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("cache", help="inspect a path cache, export and import paths, maintain it")
    subs = parser.add_subparsers(dest="cache_command", required=True, metavar="SUB-COMMAND")
    made = {
        name: subs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        for name, (_, _, text) in _COMMANDS.items()
    }
    for name, sub in made.items():
        sub.add_argument("--json", action="store_true", help="one JSON document instead of text")
        sub.set_defaults(run=run, takes_training_options=name == "import")
        if name != "import":
            sub.add_argument("cache", metavar="CACHE", help=_CACHE)
    for name in ("show", "history"):
        made[name].add_argument("question", metavar="QUESTION", help=_QUESTION)
    made["diff"].add_argument("before", type=int, metavar="STEP", help="a step")
    made["diff"].add_argument("after", type=int, metavar="STEP", help="a later step")
    made["export"].add_argument("file", metavar="FILE", help="the file to write: NAME.parquet or NAME.jsonl")
    made["rollback"].add_argument("step", type=int, metavar="STEP", help="the step to go back to")
    made["prune"].add_argument("step", type=int, metavar="STEP", help="the oldest step to keep readable")
    for name in ("show", "export"):
        made[name].add_argument("--step", type=int, help="show the cache as it was at this step (default: the newest)")
        made[name].add_argument("--tokenizer", metavar="MODEL", help=_MODEL)
    for name in ("rollback", "prune", "export"):
        made[name].add_argument("--yes", action="store_true", help="remove or replace without asking")
    _describe_import(made["import"])


def run(args: argparse.Namespace) -> int:
    """Run a sub-command; exit status 1 for damaged rows, a declined question or failed rewards, else 0."""
    from openrlhf_rpo.console import Output

    module, function, _ = _COMMANDS[args.cache_command]
    return getattr(importlib.import_module(f"openrlhf_rpo.cli.cache.{module}"), function)(args, Output(args.json))


def _describe_import(parser: argparse.ArgumentParser) -> None:
    parser.usage = "openrlhf-rpo cache import [--json] SOURCE TRAINING-OPTION..."
    source = "a run's --ckpt.path, cache file or URL, each with an optional @STEP; an exported file; or FILE:COLUMN"
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.epilog = (
        "FILE:COLUMN is a Parquet or JSONL file with questions and a column of worked solutions. The training options give "
        "questions, model and reward, and the place of the new cache (--ckpt.path or --rpo.cache.url). The training command "
        "with the same options then starts from it."
    )
