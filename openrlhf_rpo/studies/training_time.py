"""Training time by phase, RPO against the full path, and what it costs (the paper's two sections on overhead).

Seconds are those of the training steps; evaluations, the initial cache and the start-up are told apart where a run was
not interrupted. GPU hours are hours times the devices that the command asks for. Compare seconds of an idle machine only:
the load average beside them says what else it did.
"""

import argparse
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_rpo.reports.training_plot import PHASES
from openrlhf_rpo.studies.figures import RunFigures
from openrlhf_rpo.studies.plot import save_plot
from openrlhf_rpo.studies.runs import StudyError, Variant
from openrlhf_rpo.studies.training import (
    PLAIN,
    add_training_arguments,
    check_command,
    command_of,
    remarks,
    show,
    summary,
    train_all,
)

_SHOWN = PHASES[:6]  # in the table; the cache and our own code take next to nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=8)
    parser.add_argument("--price", type=float, metavar="MONEY", help="of a device and hour, in any currency (default: none)")
    parser.add_argument("--devices", type=int, metavar="N", help="devices that are paid for (default: those of the command)")
    parser.add_argument("--groups", nargs="+", type=int, metavar="G", help="samples a question (default: the command's)")


def run(args: argparse.Namespace) -> int:
    command = command_of(args)
    options = check_command(command, evaluated=False)
    if args.price is not None and args.price < 0 or args.devices is not None and args.devices < 1:
        raise StudyError("--price is 0 or more, --devices 1 or more")
    result, found = train_all(args, "time", command, variants(args.groups, options))
    devices = args.devices or asked_for(options)
    figures = {"devices": devices, "price": args.price, "variants": table(found, devices, args.price)}
    figures["remarks"] = remarks(found, evaluated=False)
    result.finish(figures)
    save_plot(args.out, lambda figure, axis: draw(axis, figures["variants"]))
    shown = [phase for phase in _SHOWN if any(row["phases"][phase] for row in figures["variants"].values())]
    rows = [("", "hours of steps", *shown, "device hours", "cost", "tokens/sample")]
    for name, row in figures["variants"].items():
        phases = [f"{row['phases'][phase]:.1f} s" for phase in shown]
        cost = "" if row["cost"] is None else f"{row['cost']:.2f}"
        hours = (f"{row['hours']['mean']:.4f}", *phases, f"{row['device_hours']:.4f}", cost, f"{row['tokens']:.1f}")
        rows.append((name, *hours))
    show(args, figures, rows)
    return 0


def variants(groups: Sequence[int] | None, options: SimpleNamespace) -> list[Variant]:
    """RPO as the command has it, and the full path; for each size of group, with as many questions a step."""
    if not groups:
        return [Variant("RPO"), PLAIN]
    sizes = {g: {"rollout.n_samples_per_prompt": g, "train.batch_size": options.rollout.batch_size * g} for g in groups}
    pairs = [
        (Variant(f"RPO, G {g}", size), Variant(f"{PLAIN.name}, G {g}", {**size, **PLAIN.options}))
        for g, size in sizes.items()
    ]
    return [variant for pair in pairs for variant in pair]


def asked_for(options: SimpleNamespace) -> int:
    """Devices of all components, those that share counted once."""
    from openrlhf_rpo.cli.cluster import required_devices

    return sum(number for _, number, _ in required_devices(options))


def table(found: Mapping[str, Sequence[RunFigures]], devices: int, price: float | None) -> dict[str, Any]:
    """By variant, means over its runs: hours of the steps, seconds by phase, device hours, cost, tokens a sample.

    ``outside`` are the seconds of start-up, initial cache and evaluations: None when a run was interrupted.
    """
    rows = {}
    for name, runs in found.items():
        seconds = [run.seconds() for run in runs]
        hours = summary(s["step_total"] / 3600 for s in seconds)
        walls = [
            run.wall_seconds - s["step_total"] for run, s in zip(runs, seconds, strict=True) if run.wall_seconds is not None
        ]
        rows[name] = {
            "hours": hours,
            "phases": {phase: summary(s.get(phase, 0.0) for s in seconds)["mean"] for phase in PHASES},
            "outside": summary(walls)["mean"] if len(walls) == len(runs) else None,
            "device_hours": hours["mean"] * devices,
            "cost": None if price is None else hours["mean"] * devices * price,
            "tokens": summary(run.generated for run in runs)["mean"],
            "load_average": max(run.load_average for run in runs),
        }
    return rows


def draw(axis: Any, rows: Mapping[str, Any]) -> None:
    names, left = list(rows), [0.0] * len(rows)
    for phase in PHASES:
        widths = [row["phases"][phase] / 60 for row in rows.values()]
        if any(widths):
            axis.barh(names, widths, left=left, label=phase)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.set(title="Time of the training steps", xlabel="minutes")
    axis.invert_yaxis()
