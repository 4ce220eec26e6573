"""``openrlhf-rpo doctor``, and ``--dry-run`` of the training command, which is the same."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from openrlhf_rpo import upstream
from openrlhf_rpo.cli.doctor.findings import EXPECTED, FAIL, PASS, Finding, Report
from openrlhf_rpo.cli.options import DRY_RUN, parse
from openrlhf_rpo.config import RPOConfig


def add_parser(commands: Any) -> None:
    """Add ``doctor`` to the sub-commands of ``openrlhf-rpo``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check versions, devices, memory, disk, data, prompts and rewards before a run",
        description="Checks this machine and, with the options of a training command behind it, that command: nothing is "
        "trained and nothing is written. Exit status 0 when nothing failed, 1 otherwise.",
        usage="openrlhf-rpo doctor [--json] [TRAINING-OPTION...]",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")


def run(words: Sequence[str], as_json: bool = False) -> int:
    """Examine this machine, and the training command of ``words`` if there are any. Exit status 0 or 1."""
    report = Report(as_json)
    if words:
        args, device, finding = _parsed(words)
        report.add([finding])
        if args is None:
            return _end(report)
    else:
        from openrlhf_rpo import platform

        args, device = None, platform.choose("auto", 0.0)
    from openrlhf_rpo.cli.doctor import machine

    report.add(machine.versions(device))
    report.add(machine.devices(device))
    if args is not None:
        report.add(machine.cluster(args, device))
        if args.rpo.enable:
            from openrlhf_rpo.cli.doctor.training import examine  # imports OpenRLHF: only now is the device known

            report.add(examine(args, RPOConfig.from_namespace(args.rpo), device))
    return _end(report)


def _parsed(words: Sequence[str]) -> tuple[Any, str, Finding]:
    from openrlhf_rpo.cli.cluster import choose_device

    try:
        upstream.check_version()
        args = parse([word for word in words if word != DRY_RUN])
        device = choose_device(args)
    except EXPECTED as error:
        return None, "", Finding(FAIL, "options", str(error))
    return args, device, Finding(PASS, "options", "they fit together")


def _end(report: Report) -> int:
    if report.as_json:
        print(json.dumps(report.document(), indent=2))
    else:
        print(report.summary(), file=sys.stderr)
    return int(report.failed)
