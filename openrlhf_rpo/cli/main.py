"""The ``openrlhf-rpo`` command. The ``add_parser`` of each sub-command's module sets its ``run``."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from openrlhf_rpo import __version__
from openrlhf_rpo.cli import data, doctor, evaluate, report, train_rpo_ray, watch
from openrlhf_rpo.cli.cache import command as cache
from openrlhf_rpo.credentials import refuse_credentials
from openrlhf_rpo.errors import UsageError, guarded
from openrlhf_rpo.launch.early import refuse
from openrlhf_rpo.platform import guard

COMMANDS = (train_rpo_ray, doctor, cache, data, evaluate, report, watch)
LAB = {
    "demo": "train the testbed's tiny model on this machine and show what RPO did",
    "study": "measure a claim of the paper",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit status (``errors.guarded``)."""
    return guarded(lambda: _run(sys.argv[1:] if argv is None else argv))


class _Parser(argparse.ArgumentParser):
    """Also the class of the sub-commands' parsers."""

    def error(self, message: str) -> NoReturn:
        refuse(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="openrlhf-rpo", description="Reinforcement fine-tuning with a path cache (RPO).")
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(takes_training_options=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands)
    if _lab() is not None:
        for name, text in LAB.items():
            commands.add_parser(name, help=f"{text} (in a checkout of the repository)", add_help=False)
    return parser


def _run(words: Sequence[str]) -> int:
    """Sub-commands that take training options find them, unparsed, in ``args.training``."""
    guard.install()
    guard.allow(False)  # until ``choose_device`` has read the options of a run
    refuse_credentials(words)
    if words and words[0] in LAB:  # these have their own parsers
        return _run_in_lab(words[0], words[1:])
    parser = build_parser()
    args, args.training = parser.parse_known_args(words)
    if args.training and not args.takes_training_options:
        parser.error(f"unrecognized arguments: {' '.join(args.training)}")
    return args.run(args)


def _lab() -> Path | None:
    """The repository's root, which has the demo and the studies; None in an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "lab" / "testbed" / "weights").is_dir() else None


def _run_in_lab(name: str, words: Sequence[str]) -> int:
    root = _lab()
    if root is None:
        raise UsageError(
            f"`openrlhf-rpo {name}` is not part of the installed package: it needs the repository, whose lab/testbed has "
            f"the tiny model. Clone it, and run `make env` and `.venv/bin/openrlhf-rpo {name}` there"
        )
    sys.path.insert(0, str(root))
    return importlib.import_module(f"lab.{name}").main(words)


if __name__ == "__main__":
    sys.exit(main())
