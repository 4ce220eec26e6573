"""The ``openrlhf-rpo`` command: one sub-command a task."""

import argparse
import sys

from openrlhf_rpo import __version__
from openrlhf_rpo.cli.cache import command as cache
from openrlhf_rpo.cli.data import command as data
from openrlhf_rpo.cli.doctor import command as doctor
from openrlhf_rpo.cli.evaluate import command as evaluate
from openrlhf_rpo.cli.report import command as report
from openrlhf_rpo.cli.study import command as study


def main(argv: list[str] | None = None) -> int:
    """Exit status of the sub-command; 130 when Ctrl-C ended it."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    if words[:1] == ["study"]:  # has a parser for each study, made when it is named
        return study.main(words[1:])
    parser = argparse.ArgumentParser(prog="openrlhf-rpo", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "train",
        help="train with RPO (the same as python -m openrlhf_rpo.cli.train_rpo_ray; --help lists its options)",
        add_help=False,
    )
    demo = commands.add_parser("demo", help="train the testbed's tiny model on this machine and show what RPO did")
    demo.add_argument("--out", default="runs/demo", help="folder of the run (default: %(default)s)")
    demo.add_argument("--steps", type=int, default=24, help="training steps (default: %(default)s)")
    demo.add_argument("--level", default="main", choices=["main", "hard"], help="difficulty (default: %(default)s)")
    cache.add_parser(commands)
    data.add_parser(commands)
    doctor.add_parser(commands)
    report.add_parsers(commands)
    evaluate.add_parser(commands)
    study.add_parser(commands)

    args, rest = parser.parse_known_args(words)
    if args.command == "train":
        from openrlhf_rpo.cli import train_rpo_ray

        return train_rpo_ray.main(rest)
    if args.command == "doctor":
        return doctor.run(rest, args.json)
    if args.command == "eval":
        return evaluate.run(args, rest)
    if args.command == "cache" and (args.cache_command == "import" or not rest):
        return cache.run(args, rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if args.command == "data":
        return data.run(args)
    if args.command in ("report", "watch"):
        return report.run(args)
    from openrlhf_rpo.cli.demo import run_demo

    return run_demo(args.out, args.steps, args.level)


if __name__ == "__main__":
    sys.exit(main())
