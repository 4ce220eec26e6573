"""``openrlhf-rpo eval``: evaluate models without prefixes."""

import argparse
from pathlib import Path
from typing import Any

from openrlhf_rpo.errors import UsageError

_DESCRIPTION = """
Sample answers to every question without a prefix, and score them with the training rewards. The results of each model on
each data set are one JSON file. The same command resumes an interrupted evaluation. Several models are compared by paired
bootstrap over the questions.
"""
_EPILOG = """
Any option of the training command may follow. To show the model the prompts that it was trained with, repeat
--data.apply_chat_template or --data.input_template. Other useful options: columns of a file (--data.input_key,
--data.label_key), rewards (--rpo.reward.functions, default math, or --reward.remote_url), engines (--vllm.num_engines,
--vllm.tensor_parallel_size), length of prompt plus answer (--data.max_len, default: the model's context, at most 32,768
tokens), --train.seed.

openrlhf-rpo eval runs/a/model --data held-out.jsonl --samples 8
openrlhf-rpo eval runs/base/model runs/a/model --data aime24 math500 --samples 16 --data.apply_chat_template \\
    --data.max_len 32768
openrlhf-rpo eval --compare runs/eval/base-model-aime24.json runs/eval/a-model-aime24.json
"""


def add_parser(commands: Any) -> None:
    from openrlhf_rpo.evaluation import judge
    from openrlhf_rpo.evaluation.benchmarks import BENCHMARKS, FOLDER

    parser: argparse.ArgumentParser = commands.add_parser(
        "eval",
        help="evaluate and compare models: accuracy, pass@k, lengths",
        description=_DESCRIPTION,
        usage="openrlhf-rpo eval MODEL... --data DATA... [options] [TRAINING-OPTION...]\n"
        "       openrlhf-rpo eval --compare RESULT RESULT...",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="model folders (--ckpt.output_dir of a training run) or hub names")
    add("--data", nargs="+", default=[], metavar="DATA", help=f"JSONL, Parquet or CSV files, or {', '.join(BENCHMARKS)}")
    add("--benchmarks", type=Path, default=Path(FOLDER), metavar="DIR", help="folder with benchmarks (default: %(default)s)")
    add("--out", type=Path, default=Path("runs/eval"), metavar="DIR", help="folder of the results (default: %(default)s)")
    add("--samples", type=_positive, default=1, metavar="N", help="samples per question and repeat (default: %(default)s)")
    add("--repeats", type=_positive, default=1, metavar="R", help="repeats, to measure the spread (default: %(default)s)")
    add("--pass-k", type=_positive, nargs="+", metavar="K", help="values of k for pass@k (default: powers of two)")
    add("--temperature", type=float, default=0.6, help="0 is greedy (default: %(default)s, as --eval.temperature)")
    add("--top-p", type=float, default=1.0, help="nucleus mass (default: %(default)s)")
    add("--max-tokens", type=_positive, metavar="N", help="longest answer in tokens (default: up to --data.max_len)")
    lighteval = "judge answers with lighteval, from the folder with its packages (default: %(const)s)"
    add("--lighteval", nargs="?", type=Path, const=judge.FOLDER, metavar="DIR", help=lighteval)
    add("--batch", type=_positive, default=256, metavar="N", help="questions per commit (default: %(default)s)")
    add("--compare", nargs="+", type=Path, metavar="RESULT", help="only compare these result files")
    add("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(run=run, takes_training_options=True)


def run(args: argparse.Namespace) -> int:
    from openrlhf_rpo.console import Output
    from openrlhf_rpo.evaluation import results, sample
    from openrlhf_rpo.evaluation.session import resumable
    from openrlhf_rpo.launch.options import given_options

    _check(args)
    if "--rpo.enable" in given_options(args.training):
        raise UsageError("--rpo.enable: leave it out; an evaluation never continues stored paths")
    if args.compare:
        files = args.compare
    else:
        with resumable():
            files = sample.evaluate_all(args)
    results.show(files, Output(args.json), to_compare=bool(args.compare))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check the arguments before anything is read. Raises UsageError."""
    if args.compare:
        if args.models or args.data or args.training:
            raise UsageError("--compare reads results only: give no model, no --data and no training options")
        return
    if not args.models:
        raise UsageError(
            "no model given: name a model folder before all options (`openrlhf-rpo eval MODEL --data DATA`), or use "
            "--compare with result files"
        )
    if not args.data:
        raise UsageError("--data is missing: a file with questions, or a benchmark's name")
    n = args.samples * args.repeats
    if args.pass_k and max(args.pass_k) > n:
        raise UsageError(f"--pass-k {max(args.pass_k)} needs as many samples per question, but --samples x --repeats is {n}")
    if not 0 <= args.temperature <= 2:
        raise UsageError(f"--temperature {args.temperature}: 0 to 2")
    if args.temperature == 0 and n > 1:
        raise UsageError(f"--temperature 0 is greedy, so all {n} samples would be the same: use --samples 1 --repeats 1")
    if not 0 < args.top_p <= 1:
        raise UsageError(f"--top-p {args.top_p}: in (0, 1]")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1")
    return number
