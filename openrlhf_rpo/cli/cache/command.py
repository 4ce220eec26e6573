"""The sub-commands of ``openrlhf-rpo cache``, their arguments, and what their errors look like."""

import argparse
import importlib
import sys
from typing import Any

from openrlhf_rpo.upstream import UpstreamError, UsageError

_CACHE = "a run's --ckpt.path, a cache file, or a database URL"
_QUESTION = "a question's id, the beginning of one, or a part of its text"
_MODEL = "model folder or hub name whose tokenizer the cache uses (default: where its run had it)"

# name -> (module, function, help)
_COMMANDS = {
    "info": ("look", "info", "what a cache holds, and what it belongs to"),
    "show": ("show", "show", "a question's path as text, by the step that sampled each part, and its lineage"),
    "history": ("look", "history", "every visit of a question"),
    "stats": ("look", "stats", "reward, length and age of the cached paths, and the share replaced, by step"),
    "diff": ("look", "diff", "which paths changed between two steps"),
    "export": ("export", "export", "write the cached paths to a Parquet or JSONL file"),
    "import": ("initial", "import_", "make the initial cache of a run from other paths"),
    "verify": ("look", "verify", "decode every row and name what is damaged"),
    "rollback": ("change", "rollback", "go back to a step: remove everything newer"),
    "prune": ("change", "prune", "remove the paths that no step from STEP on reads"),
    "vacuum": ("change", "vacuum", "give the space of removed rows back to the file system"),
}


def add_parser(commands: Any) -> None:
    """Add ``cache`` and its sub-commands to those of ``openrlhf-rpo``."""
    parser = commands.add_parser("cache", help="look at a path cache, take paths out and in, keep it in order")
    subs = parser.add_subparsers(dest="cache_command", required=True, metavar="SUB-COMMAND")
    made = {
        name: subs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        for name, (_, _, text) in _COMMANDS.items()
    }
    for name, sub in made.items():
        sub.add_argument("--json", action="store_true", help="one JSON document instead of text")
        if name != "import":
            sub.add_argument("cache", metavar="CACHE", help=_CACHE)
    for name in ("show", "history"):
        made[name].add_argument("question", metavar="QUESTION", help=_QUESTION)
    made["diff"].add_argument("before", type=int, metavar="STEP", help="a step")
    made["diff"].add_argument("after", type=int, metavar="STEP", help="another step")
    made["export"].add_argument("file", metavar="FILE", help="the file to write: NAME.parquet or NAME.jsonl")
    for name in ("rollback", "prune"):
        made[name].add_argument(
            "step", type=int, metavar="STEP", help="the oldest step that stays" if name == "prune" else "it"
        )
    for name in ("show", "export"):
        made[name].add_argument("--step", type=int, help="the cache as it was at this step (default: as it is)")
        made[name].add_argument("--tokenizer", metavar="MODEL", help=_MODEL)
    for name in ("rollback", "prune", "export"):
        made[name].add_argument("--yes", action="store_true", help="do not ask before something is removed or replaced")
    _describe_import(made["import"])


def run(args: argparse.Namespace, rest: list[str]) -> int:
    """Exit status: of the sub-command (0 done, 1 damages found, declined or rewards failed), 2 where it cannot work."""
    from openrlhf_rpo.cache.errors import CacheError
    from openrlhf_rpo.cli.cache.output import Output
    from openrlhf_rpo.config import OptionError
    from openrlhf_rpo.exchange.errors import ExchangeError

    module, function, _ = _COMMANDS[args.cache_command]
    args.training = rest
    try:
        return getattr(importlib.import_module(f"openrlhf_rpo.cli.cache.{module}"), function)(args, Output(args.json))
    except (UsageError, OptionError, ExchangeError, CacheError, UpstreamError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _describe_import(parser: argparse.ArgumentParser) -> None:
    parser.usage = "openrlhf-rpo cache import [--json] SOURCE TRAINING-OPTION..."
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="another run's --ckpt.path, cache file or URL, each with @STEP as it was at that step; a file that `cache "
        "export` wrote; or FILE:COLUMN, worked solutions beside the questions of a Parquet or JSONL file",
    )
    parser.epilog = (
        "Every other option is the training command's: they say which questions, model and reward the paths are for, and "
        "where the cache is made (--ckpt.path or --rpo.cache.url). The same training command, with --rpo.cut.rule uniform "
        "or another rule than verify, then starts from it."
    )
