"""``openrlhf-rpo doctor``, also run by ``--dry-run`` of the training command."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from openrlhf_rpo import upstream
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import UserError
from openrlhf_rpo.launch.doctor.findings import FAIL, PASS, Finding, Report
from openrlhf_rpo.launch.options import DRY_RUN, parse


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check versions, devices, memory, disk, data, prompts and rewards before a run",
        description="Check this machine and, given the options of a training command, that command. Nothing is trained or "
        "written. Exit status 0 when nothing failed, 1 otherwise.",
        usage="openrlhf-rpo doctor [--json] [TRAINING-OPTION...]",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    parser.set_defaults(run=lambda args: examine(args.training, args.json), takes_training_options=True)


def examine(words: Sequence[str], as_json: bool = False) -> int:
    """Check this machine, and the training command with the options ``words`` if any. Returns the exit status."""
    report = Report(as_json)
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():  # OpenRLHF prints recommendations
        report.add(_findings([word for word in words if word != DRY_RUN]))
    if as_json:
        print(json.dumps(report.document(), indent=2))
    else:
        print(report.summary(), file=sys.stderr)
    return int(report.failed)


def _findings(words: Sequence[str]) -> Iterator[Finding]:
    from openrlhf_rpo import platform
    from openrlhf_rpo.launch.cluster import choose_device
    from openrlhf_rpo.launch.doctor import machine

    if not words:
        device = platform.choose("auto", 0.0)
        yield from machine.versions(device)
        yield from machine.devices(device)
        return
    try:
        upstream.check_version()
        args = parse(words)
        upstream.check_packages(args)
        device = choose_device(args)
    except UserError as error:
        yield Finding(FAIL, "options", str(error))
        return
    yield Finding(PASS, "options", "they fit together")
    yield from machine.versions(device)
    yield from machine.devices(device)
    yield from machine.cluster(args, device)
    if args.rpo.enable:
        from openrlhf_rpo.launch.doctor import training  # imports OpenRLHF: only after choose_device

        yield from training.examine(args, RPOConfig.from_namespace(args.rpo), device)
