"""``openrlhf-rpo study NAME``: the registry of the studies.

A study is a module with ``add_arguments(parser)`` and ``run(args) -> int``, imported only when it is named. ``args.out`` is
the JSON file of the result (``evaluation.result``), ``args.json`` asks for the figures as a document on standard output, and
``args.training`` holds the training options that follow the study's own.
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from openrlhf_rpo.evaluation.session import resumable

# name -> (module below lab.studies, help), in order of the listing.
STUDIES = {
    "prefix-accuracy": ("prefix_accuracy", "accuracy of continuations by how much of a path's end was cut (figure 1, top)"),
    "prefix-similarity": ("prefix_similarity", "similarity of beginnings, and of new endings (figure 1, bottom)"),
    "init-time": ("init_time", "time and tokens of the initial cache, by number of engines (appendix)"),
    "tokens": ("tokens", "generated tokens per sample against L, the largest cut"),
    "time": ("training_time", "training time by phase and its cost, RPO against the full path"),
    "sweep": ("sweep", "held-out accuracy over L, alpha and epsilon; trials through Ray Tune"),
    "pass-at-n": ("pass_at_n", "exploration: pass@N by epochs and length limit, RPO against the full path"),
    "stability": ("stability", "many small steps: lengths, accuracy, gradient norms, RPO against the full path"),
    "large-to-small": ("large_to_small", "a stronger model's paths as the initial cache of a weaker one (appendix)"),
    "pathcheck": ("pathcheck", "how often a prefix already holds the mistake that makes its continuations fail"),
}

_HELP = "measure a claim of the paper, on any model or on the testbed's"


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the studies, with the arguments of the one that ``words`` name."""
    parser = argparse.ArgumentParser(prog="openrlhf-rpo study", description=_HELP[0].upper() + _HELP[1:] + ".")
    subs = parser.add_subparsers(dest="study", required=True, metavar="NAME")
    for name, (module, text) in STUDIES.items():
        sub = subs.add_parser(name, help=text, allow_abbrev=False)
        if words[:1] == [name]:
            study = importlib.import_module(f"lab.studies.{module}")
            sub.description, sub.formatter_class = study.__doc__, argparse.RawDescriptionHelpFormatter
            sub.add_argument("--out", type=Path, metavar="FILE", help="result file (default: runs/studies/NAME.json)")
            sub.add_argument("--json", action="store_true", help="the figures as one JSON document on standard output")
            study.add_arguments(sub)
            sub.set_defaults(run=study.run, out=Path("runs") / "studies" / f"{name}.json")
    return parser


def main(words: Sequence[str]) -> int:
    """Run the study that ``words`` name; its exit status. Raises UserError."""
    args, args.training = build_parser(words).parse_known_args(words)
    with resumable():
        return args.run(args)
