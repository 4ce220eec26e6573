"""Shared by the studies that sample from a model: arguments, model, questions and chunks."""

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lab.testbed import LEVELS, model_dir, write_dataset
from openrlhf_rpo.console import Output
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.evaluation.result import StudyResult
from openrlhf_rpo.evaluation.session import Session, prepare, session, training_args
from openrlhf_rpo.launch.options import given_options
from openrlhf_rpo.run.files import contents_of, weights_fingerprint
from openrlhf_rpo.types import Question

TESTBED_MAX_LEN = 768
CHUNK = 32  # questions between two commits


def add_arguments(parser: argparse.ArgumentParser, questions: int) -> None:
    """Model, data, sampling, seed, and number of questions (default: ``questions``)."""
    add = parser.add_argument
    add("--model", metavar="MODEL", help="model folder or hub name (default: the testbed's)")
    add("--data", metavar="FILE", help="JSONL, Parquet or CSV file of questions (default: the testbed's)")
    add("--level", default="main", choices=sorted(LEVELS), help="level of the testbed (default: %(default)s)")
    add(
        "--questions",
        type=positive,
        default=questions,
        metavar="N",
        help="the first N questions (default: %(default)s)",
    )
    add("--temperature", type=float, default=1.0, help="sampling temperature (default: %(default)s)")
    add("--top-p", type=float, default=1.0, help="nucleus mass (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of every draw (default: %(default)s)")
    parser.epilog = (
        "Then any option of the training command: template and columns (--data.apply_chat_template, "
        "--data.input_key, --data.label_key), rewards (--rpo.reward.functions, --reward.remote_url), engines "
        "(--vllm.num_engines, --vllm.tensor_parallel_size), lengths (--data.max_len, --rollout.max_new_tokens)."
    )


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: at least 1")
    return number


@contextlib.contextmanager
def opened(args: argparse.Namespace, engines: int | None = None) -> Iterator[Session]:
    """Start the engines of the study's model, with its questions and sampling options."""
    with tempfile.TemporaryDirectory(prefix="rpo-study") as folder:
        model, data, words = args.model, args.data, list(args.training)
        if model is None:
            model = str(model_dir(args.level))
            data = str(write_dataset(args.level, folder, 1, args.questions, seed=args.seed)[1])
            words = ["--data.max_len", str(TESTBED_MAX_LEN), *words]
        with session(prepare(training_args(model, data, with_own_options(args, words, engines)))) as opened_session:
            yield opened_session


def with_own_options(args: argparse.Namespace, words: Sequence[str], engines: int | None = None) -> list[str]:
    """The training options with those that the study sets. Raises UsageError for one that is among them already."""
    own = {
        "--data.max_samples": args.questions,
        "--rollout.temperature": args.temperature,
        "--rollout.top_p": args.top_p,
        "--train.seed": args.seed,
        **({} if engines is None else {"--vllm.num_engines": engines}),
    }
    if twice := own.keys() & given_options(words):
        raise UsageError(f"{min(twice)}: leave it out; the study has its own argument for it")
    return [*words, *(str(word) for pair in own.items() for word in pair)]


def settings(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """What a result depends on: shared arguments, those in ``names``, training options, and the content of their files.

    Raises UsageError for a model without data, or data without a model.
    """
    if (args.model is None) != (args.data is None):
        raise UsageError("--model and --data belong together: give both, or neither for the testbed's")
    shared = ("model", "data", "level", "questions", "temperature", "top_p", "seed", "training")
    values = {name: getattr(args, name) for name in (*shared, *names)}
    if args.model is not None:
        values["level"] = None
        values |= {name: str(Path(values[name]).absolute()) for name in ("model", "data") if Path(values[name]).exists()}
        values["weights"] = weights_fingerprint(values["model"])
    files = [file for word in args.training if os.path.isfile(file := word.rpartition("=")[2])]
    values["contents"] = contents_of(values["data"], *files) or None
    return values


def open_result(args: argparse.Namespace, study: str, values: dict[str, Any]) -> StudyResult:
    """The file ``--out``, new or continued. Raises ResultError for other settings, or if it cannot be written."""
    result = StudyResult.open(args.out, study, values)
    result.check_writable()
    return result


def unfinished(result: StudyResult, questions: Sequence[Question], text: str) -> Iterator[tuple[Sequence[Question], Any]]:
    """Chunks of the questions that are not in ``result`` yet, and a function that advances their progress bar by one."""
    missing = set(result.missing(q.question_id for q in questions))
    todo = [q for q in questions if q.question_id in missing]
    with progress(len(questions), text) as bar:
        bar.update(len(questions) - len(todo))
        for start in range(0, len(todo), CHUNK):
            yield todo[start : start + CHUNK], bar.update


def sampling_of(args: argparse.Namespace, rollout: Any, n_samples: int) -> Any:
    """The run's sampling with ``n_samples`` samples per question."""
    return replace(rollout.sampling, n_samples=n_samples, temperature=args.temperature, top_p=args.top_p)


def progress(total: int, text: str, unit: str = "question") -> tqdm:
    """A progress bar on standard error."""
    return tqdm(total=total, desc=text, unit=unit, dynamic_ncols=True)


def show(args: argparse.Namespace, result: StudyResult) -> None:
    """Print the summary: as JSON with ``--json``, else as tables."""
    out = Output(args.json)
    out.emit(result.figures or {})
    for name, value in (result.figures or {}).items():
        rows = value if isinstance(value, dict) else {"": value}
        if rows and all(isinstance(row, dict) for row in rows.values()):
            columns = list(dict.fromkeys(key for row in rows.values() for key in row))
            out.table([name, *columns], [[key, *(row.get(column) for column in columns)] for key, row in rows.items()])
        else:
            out.pairs({name: value})
    out.line(f"written to {result.file}")
