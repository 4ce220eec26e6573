"""Training time and cost by phase, RPO against the full path (the paper's two sections on overhead).

Seconds are those of the training steps; evaluations, initial cache and start-up are separate, and known for uninterrupted
runs only. Device hours are hours times the devices that the command asks for. Compare only seconds from an idle machine;
``neighbours`` says how many cores other work kept busy.
"""

import argparse
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from lab.figures import RunFigures
from lab.plot import save_plot
from lab.runs import StudyError, Variant
from lab.training import (
    PLAIN,
    add_training_arguments,
    check_command,
    command_of,
    remarks,
    show,
    summary,
    train_all,
    with_plain,
)
from lab.training_plot import PHASES

_SHOWN = PHASES[:6]  # in the table; the others are negligible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=8)
    parser.add_argument(
        "--price", type=float, metavar="MONEY", help="price of a device hour in any currency (default: none)"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="number of paid devices (default: those of the command)")
    parser.add_argument("--groups", nargs="+", type=int, metavar="G", help="samples per question (default: the command's)")


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
    """RPO as in the command, and the full path; for each group size, with the same number of questions per step."""
    if not groups:
        return [Variant("RPO"), PLAIN]
    sizes = {g: {"rollout.n_samples_per_prompt": g, "train.batch_size": options.rollout.batch_size * g} for g in groups}
    return with_plain({f"G {g}": size for g, size in sizes.items()})


def asked_for(options: SimpleNamespace) -> int:
    """Devices of all components; shared ones count once."""
    from openrlhf_rpo.launch.cluster import required_devices

    return sum(number for _, number, _ in required_devices(options))


def table(found: Mapping[str, Sequence[RunFigures]], devices: int, price: float | None) -> dict[str, Any]:
    """By variant, means over its runs: hours of the steps, seconds by phase, device hours, cost, tokens per sample.

    ``outside``: seconds of start-up, initial cache and evaluations; None if a run was interrupted.
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
            "neighbours": max(run.neighbours for run in runs),
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
