"""The arguments of ``openrlhf-rpo eval``, and what its errors look like."""

import argparse
import sys
from pathlib import Path
from typing import Any

from openrlhf_rpo.upstream import UpstreamError, UsageError

_DESCRIPTION = """
Samples answers to every question from the bare question (never from a prefix) and scores them with the rewards of
training. Each model's figures on each data set are one JSON file; an interrupted evaluation goes on where it stopped.
Several models are compared by paired bootstrap over the questions.
"""
_EPILOG = """
Behind these, any option of the training command; give those that the model was trained with, and it sees the same
prompts: --data.apply_chat_template or --data.input_template, --data.input_key and --data.label_key of a file, rewards
(--rpo.reward.functions, default math, or --reward.remote_url), engines (--vllm.num_engines,
--vllm.tensor_parallel_size), room for prompt and answer (--data.max_len, default the
model's context, at most 32,768 tokens), --train.seed.

openrlhf-rpo eval runs/a/model --data held-out.jsonl --samples 8
openrlhf-rpo eval runs/base/model runs/a/model --data aime24 math500 --samples 16 --data.apply_chat_template \\
    --data.max_len 32768
openrlhf-rpo eval --compare runs/eval/base-model-aime24.json runs/eval/a-model-aime24.json
"""


def add_parser(commands: Any) -> None:
    """Add ``eval`` to the sub-commands of ``openrlhf-rpo``."""
    from openrlhf_rpo.cli.evaluate import judge
    from openrlhf_rpo.cli.evaluate.benchmarks import BENCHMARKS, FOLDER

    parser: argparse.ArgumentParser = commands.add_parser(
        "eval",
        help="evaluate models from the bare question: accuracy, pass@k, lengths, and what differs between them",
        description=_DESCRIPTION,
        usage="openrlhf-rpo eval MODEL... --data DATA... [options] [TRAINING-OPTION...]\n"
        "       openrlhf-rpo eval --compare RESULT RESULT...",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="model folders (what training saved in --ckpt.output_dir) or hub names")
    add("--data", nargs="+", default=[], metavar="DATA", help=f"JSONL, Parquet or CSV files, or {', '.join(BENCHMARKS)}")
    add("--benchmarks", type=Path, default=Path(FOLDER), metavar="DIR", help="folder with benchmarks (default: %(default)s)")
    add("--out", type=Path, default=Path("runs/eval"), metavar="DIR", help="folder of the results (default: %(default)s)")
    add("--samples", type=_positive, default=1, metavar="N", help="samples a question and repeat (default: %(default)s)")
    add("--repeats", type=_positive, default=1, metavar="R", help="repeats, for the spread (default: %(default)s)")
    add("--pass-k", type=_positive, nargs="+", metavar="K", help="the k of pass@k (default: the powers of two)")
    add("--temperature", type=float, default=0.6, help="0 is greedy (default: %(default)s, as --eval.temperature)")
    add("--top-p", type=float, default=1.0, help="nucleus mass (default: %(default)s)")
    add("--max-tokens", type=_positive, metavar="N", help="longest answer in tokens (default: up to --data.max_len)")
    add(
        "--lighteval",
        nargs="?",
        type=Path,
        const=judge.FOLDER,
        metavar="DIR",
        help="lighteval judges the answers, from the folder that its packages were installed in (default: %(const)s)",
    )
    add("--batch", type=_positive, default=256, metavar="N", help="questions between two commits (default: %(default)s)")
    add("--compare", nargs="+", type=Path, metavar="RESULT", help="compare result files; nothing is sampled")
    add("--json", action="store_true", help="one JSON document on standard output")


def run(args: argparse.Namespace, rest: list[str]) -> int:
    """Exit status 0, or 2 when the command cannot work, said in one message."""
    from ray.exceptions import RayError

    from openrlhf_rpo.cli.cache.output import Output
    from openrlhf_rpo.cli.evaluate import results, sample
    from openrlhf_rpo.cli.evaluate.judge import JudgeError
    from openrlhf_rpo.cli.failures import cause_of
    from openrlhf_rpo.config import OptionError
    from openrlhf_rpo.rollout.scoring import RewardFailures
    from openrlhf_rpo.studies.result import ResultError

    args.training, out = rest, Output(args.json)
    try:
        _check(args)
        files = args.compare or sample.evaluate_all(args)
        results.show(files, out)
    except (UsageError, OptionError, UpstreamError, ResultError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RayError, RewardFailures, JudgeError) as error:
        print(f"error: {cause_of(error)}\n  The same command goes on where this one stopped", file=sys.stderr)
        return 1
    return 0


def _check(args: argparse.Namespace) -> None:
    """What can be known before anything is read. Raises UsageError."""
    if args.compare:
        if args.models or args.data or args.training:
            raise UsageError("--compare reads results and samples nothing: give no model, no --data and no other options")
        return
    if not args.models:
        raise UsageError("no model: give a model folder, or --compare with result files")
    if not args.data:
        raise UsageError("--data is missing: a file of questions, or a benchmark's name")
    n = args.samples * args.repeats
    if args.pass_k and max(args.pass_k) > n:
        raise UsageError(f"--pass-k {max(args.pass_k)} needs as many samples a question; --samples x --repeats is {n}")
    if not args.temperature >= 0:
        raise UsageError(f"--temperature {args.temperature}: 0 or more")
    if args.temperature == 0 and n > 1:
        raise UsageError(f"--temperature 0 is greedy, and all {n} samples would be the same: use --samples 1 --repeats 1")
    if not 0 < args.top_p <= 1:
        raise UsageError(f"--top-p {args.top_p}: in (0, 1]")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1")
    return number
