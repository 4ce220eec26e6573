"""The registry of the studies, and what every one of them shares: where its result goes, and what its errors look like.

A study is a module with ``add_arguments(parser)`` and ``run(args) -> int``. It is imported when it is named, so its
imports cost the other commands nothing. ``args.out`` is the result's JSON file (``studies.result``), ``args.json`` asks
for the figures as a document on standard output, and ``args.training`` has the training options behind the study's own.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_rpo.upstream import UpstreamError, UsageError

# name -> (module below openrlhf_rpo.studies, help). One line a study, in the order in which they are listed.
STUDIES = {
    "prefix-accuracy": ("prefix_accuracy", "accuracy of continuations by how much of a path's end was cut (figure 1, top)"),
    "prefix-similarity": ("prefix_similarity", "how alike answers begin, and how alike new endings are (figure 1, bottom)"),
    "init-time": ("init_time", "time and tokens of the initial cache, by number of engines (appendix)"),
    "tokens": ("tokens", "generated tokens a sample against L, the largest cut"),
    "time": ("training_time", "training time by phase and its cost, RPO against the full path"),
    "sweep": ("sweep", "held-out accuracy over L, alpha and epsilon; trials through Ray Tune"),
    "pass-at-n": ("pass_at_n", "exploration: pass@N by epochs and length limit, RPO against the full path"),
    "stability": ("stability", "many small steps: lengths, accuracy, gradient norms, RPO against the full path"),
    "large-to-small": ("large_to_small", "a stronger model's paths as the initial cache of a weaker one (appendix)"),
    "pathcheck": ("pathcheck", "how often a stored path already holds the mistake that makes its continuations fail"),
}

_HELP = "measure a claim of the paper, on any model or on the testbed's"


def add_parser(commands: Any) -> None:
    """Add ``study`` to the commands of ``openrlhf-rpo``; its own words are parsed by ``main``."""
    commands.add_parser("study", help=_HELP, add_help=False)


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the studies, with the arguments of the one that ``words`` name."""
    parser = argparse.ArgumentParser(prog="openrlhf-rpo study", description=_HELP[0].upper() + _HELP[1:] + ".")
    subs = parser.add_subparsers(dest="study", required=True, metavar="NAME")
    for name, (module, text) in STUDIES.items():
        sub = subs.add_parser(name, help=text, allow_abbrev=False)
        if words[:1] == [name]:
            study = importlib.import_module(f"openrlhf_rpo.studies.{module}")
            sub.description, sub.formatter_class = study.__doc__, argparse.RawDescriptionHelpFormatter
            sub.add_argument("--out", type=Path, metavar="FILE", help="result file (default: runs/studies/NAME.json)")
            sub.add_argument("--json", action="store_true", help="the figures as one JSON document on standard output")
            study.add_arguments(sub)
            sub.set_defaults(run=study.run, out=Path("runs") / "studies" / f"{name}.json")
    return parser


def main(words: Sequence[str]) -> int:
    """Run the study that ``words`` name. Exit status: the study's, 2 for a command that cannot work, 130 after Ctrl-C."""
    args, rest = build_parser(words).parse_known_args(words)
    args.training = rest
    from ray.exceptions import RayError

    from openrlhf_rpo.cache.errors import CacheError
    from openrlhf_rpo.cli.failures import cause_of
    from openrlhf_rpo.config import OptionError
    from openrlhf_rpo.exchange.errors import ExchangeError
    from openrlhf_rpo.rollout.scoring import RewardFailures
    from openrlhf_rpo.studies.result import ResultError

    try:
        return args.run(args)
    except (UsageError, OptionError, ExchangeError, CacheError, UpstreamError, ResultError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RayError, RewardFailures) as error:
        print(f"error: {cause_of(error)}\n  The same command goes on where this one stopped", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where this one stopped", file=sys.stderr)
        return 130
