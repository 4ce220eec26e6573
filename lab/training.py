"""Shared by the studies that train: the training command, its runs, and their result."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from threading import Event
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from lab.command import option_words
from lab.figures import RunFigures, read_run
from lab.runs import (
    FOLDERS,
    Run,
    StudyError,
    Variant,
    changed,
    check_folder,
    finished,
    record_of,
    runs_of,
    train,
    training_options,
    without_options,
    words_of,
)
from openrlhf_rpo.algo.methods import method_class, option_names
from openrlhf_rpo.evaluation.result import StudyResult
from openrlhf_rpo.run.files import contents_of

PLAIN = Variant("full path", {"rpo.enable": "false"})
"""Plain OpenRLHF, which generates every answer from scratch: the baseline of every study."""

_EPILOG = """Training options, or a whole training command, follow `--`. The study overrides their folders: its runs are in
a folder beside the result file, under the same name. Without training options the study trains the testbed's tiny model with
the paper's cut. The same command continues an interrupted study; finished runs are not repeated. With RAY_ADDRESS the runs
use that cluster, one after the other."""

WORDS = "options"
"""A run's training options in its part of the result file, beside its figures."""


@dataclass(frozen=True)
class Job:
    """A run, its training options, and the content of its data files."""

    run: Run
    words: list[str]
    data: Mapping[str, str]


Trainer = Callable[[Sequence[Job]], Iterator[Job]]
"""Trains jobs in some order, and yields each when it is finished."""


def add_training_arguments(parser: argparse.ArgumentParser, steps: int, level: str = "main") -> None:
    """The arguments of every study that trains; ``steps`` and ``level`` are defaults for runs on the testbed."""
    parser.set_defaults(testbed=(steps, level))
    parser.usage = f"{parser.prog} [OPTION...] [-- TRAINING-OPTION...]"
    parser.epilog = _EPILOG
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="runs of each setting (default: 0)")
    parser.add_argument("--finished", action="store_true", help="report finished runs only, start none")
    parser.add_argument("--level", choices=["main", "hard"], help=f"testbed: difficulty (default: {level})")
    words = f"testbed: length of a run in steps of 16 questions, an even number (default: {steps})"
    parser.add_argument("--steps", type=int, metavar="N", help=words)


def folder_of(args: argparse.Namespace) -> Path:
    """The folder of a study's runs, beside its result file."""
    return args.out.resolve().with_suffix("")


def on_testbed(args: argparse.Namespace) -> bool:
    """Whether no training options were given."""
    return not training_options(args.training)


def command_of(args: argparse.Namespace) -> list[str]:
    """The user's training options, or those of a run on the testbed."""
    if not on_testbed(args):
        if args.steps or args.level:
            raise StudyError("--steps and --level are for the testbed only: leave them out, or the training options")
        return training_options(args.training)
    from lab.demo import training_command

    steps, level = args.steps or args.testbed[0], args.level or args.testbed[1]
    if steps < 2 or steps % 2:
        raise StudyError(f"--steps {steps}: an even number, at least 2, because the testbed's questions are visited twice")
    return training_options(training_command(level, folder_of(args), steps))


def replaying_all(command: Sequence[str]) -> list[str]:
    """The command with the paper's setting as defaults, which its own options override: a cache sampled before training,
    no group from the bare question (a choice only of methods that have the option), and the paper's cut.

    Raises StudyError for a command that cannot be parsed.
    """
    bulk = {"rpo.init.mode": "bulk"}
    method = method_class(parsed([*option_words(bulk), *command], "the training options").rpo.method)
    share = {"rpo.replay.share": 0} if "replay.share" in option_names(method).values() else {}
    return [*option_words({**bulk, "rpo.method": "rpo", **share}), *command]


def parsed(words: Sequence[str], what: str) -> SimpleNamespace:
    """The options as the training command parses them. Raises StudyError, its message prefixed with ``what``."""
    from openrlhf_rpo.errors import UserError
    from openrlhf_rpo.launch.options import parse

    try:
        return parse(list(words))
    except UserError as error:
        raise StudyError(f"{what}: {error}") from error


def check_command(command: Sequence[str], evaluated: bool = True) -> SimpleNamespace:
    """The parsed command. Raises StudyError if no study can use it, or if it lacks evaluations that are needed
    (``evaluated``)."""
    options = parsed(command, "the training options")
    wrong = [
        (not options.rpo.enable, "--rpo.enable false: the study compares RPO with it, and adds it itself"),
        (options.rpo.cache.url, "--rpo.cache.url: every run of a study has its own path cache in its folder"),
        (options.rpo.method == "off", "--rpo.method off: nothing would be replayed"),
    ]
    if said := [text for condition, text in wrong if condition]:
        raise StudyError(f"{said[0]}; leave it out")
    if evaluated and not (options.eval.dataset and options.eval.steps > 0):
        raise StudyError(
            "accuracy comes from the evaluations in training: give the command --eval.dataset, and --eval.steps above 0"
        )
    return options


def train_all(
    args: argparse.Namespace,
    study: str,
    command: Sequence[str],
    variants: Sequence[Variant],
    trainer: Trainer | None = None,
    seeds: Sequence[int] | None = None,
) -> tuple[StudyResult, dict[str, list[RunFigures]]]:
    """Train every unfinished variant and seed; the result file, and the figures by variant.

    With ``--finished`` nothing is trained, and variants without a finished run are absent. Raises StudyError before training
    if a command cannot work, or a folder or a part of the file belongs to other runs.
    """
    jobs = [_job(run, command) for run in runs_of(variants, seeds or args.seeds, folder_of(args))]
    for job in jobs:
        check_folder(job.run, job.words, job.data)
    settings = {"command": _without_folders(command), "data": _relative(jobs[0].data)}
    result = StudyResult.open(args.out, study, settings)
    result.check_writable()
    for job in jobs:
        _check_part(args, job, result.parts.get(job.run.name, {}))
    if args.finished:
        jobs = _finished(jobs, result.parts)
    unfinished = set(result.missing(job.run.name for job in jobs))
    for job in (trainer or in_turn)([job for job in jobs if job.run.name in unfinished]):
        figures = read_run(job.run.folder, record_of(job.run)).document()
        result.add(job.run.name, figures | {WORDS: _words(args, job)})
    found: dict[str, list[RunFigures]] = {}
    for job in jobs:
        figures = {name: value for name, value in result.parts[job.run.name].items() if name != WORDS}
        found.setdefault(job.run.variant.name, []).append(RunFigures.of(figures))
    return result, found


def to_train(jobs: Iterable[Job]) -> list[Job]:
    """The unfinished jobs. Raises StudyError if any folder, even of a finished one, has other options or data."""
    asked = list(jobs)
    for job in asked:
        check_folder(job.run, job.words, job.data)
    return [job for job in asked if not finished(job.run)]


def in_turn(jobs: Sequence[Job], at_once: int = 1) -> Iterator[Job]:
    """Train the runs in order, ``at_once`` at a time, with a progress bar on standard error; yields each when it is done.

    When one fails, no other begins, and those running are stopped. Raises its StudyError.
    """
    form = "{desc} |{bar}| {n:.2f}/{total_fmt} runs [{elapsed}<{remaining}{postfix}]"
    shares, stop = dict.fromkeys(range(len(jobs)), 0.0), Event()
    with (
        tqdm(total=len(jobs), bar_format=form, dynamic_ncols=True, disable=not jobs) as bar,
        ThreadPoolExecutor(at_once) as pool,
    ):

        def report(number: int, share: float, said: str) -> None:
            shares[number] = share
            bar.n = sum(shares.values())
            bar.set_description_str(jobs[number].run.name, refresh=False)
            bar.set_postfix_str(said)

        def one(number: int, job: Job) -> Job:
            report(number, 0.0, "")
            train(job.run, job.words, job.data, partial(report, number), stop)
            report(number, 1.0, "")
            return job

        waiting, running = iter(enumerate(jobs)), set[Future[Job]]()
        try:
            while running := running | {pool.submit(one, *pair) for pair in islice(waiting, at_once - len(running))}:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for run in done:
                    yield run.result()
        finally:
            stop.set()


def summary(values: Iterable[float]) -> dict[str, float | int]:
    """Mean, standard deviation (0 for one value) and number of runs."""
    found = list(values)
    return {"mean": fmean(found), "sd": stdev(found) if len(found) > 1 else 0.0, "runs": len(found)}


def cell(figure: Mapping[str, float] | None, form: str) -> str:
    """The mean of a ``summary`` as text; empty for None."""
    return "" if figure is None else format(figure["mean"], form)


def accuracy(runs: Sequence[RunFigures]) -> dict[str, float | int] | None:
    """Accuracy of the last evaluations; None if a run has none, such as plain OpenRLHF shorter than --eval.steps."""
    last = [run.evaluations[-1][1] for run in runs if run.evaluations]
    return summary(last) if len(last) == len(runs) else None


def with_plain(named: Mapping[str, Mapping[str, object]]) -> list[Variant]:
    """RPO and the full path for each name and its options."""
    return [
        Variant(f"{base}, {name}", {**options, **extra})
        for name, options in named.items()
        for base, extra in (("RPO", {}), (PLAIN.name, PLAIN.options))
    ]


def remarks(found: Mapping[str, Sequence[RunFigures]], evaluated: bool = True) -> list[str]:
    """Caveats of a comparison: single seeds, accuracies of different steps (only if ``evaluated``), and a busy host."""
    runs = [run for some in found.values() for run in some]
    notes = []
    if any(len(some) == 1 for some in found.values()):
        notes.append("one run per setting: differences between single runs may be noise")
    if evaluated and len(last := {run.evaluations[-1][0] for run in runs if run.evaluations}) > 1:
        notes.append(
            f"accuracies are of the last evaluations, which were at different steps: {', '.join(map(str, sorted(last)))}"
        )
    if any(run.wall_seconds is None for run in runs):
        notes.append("seconds cannot be compared: a run was interrupted, and what ran beside its first part is unknown")
    elif busy := [run for run in runs if not run.quiet]:
        most = max(run.neighbours for run in busy)
        notes.append(f"seconds cannot be compared: other work kept up to {most:.1f} of {busy[0].cores} cores busy")
    return notes


def show(args: argparse.Namespace, figures: Mapping[str, Any], rows: Sequence[Sequence[str]]) -> None:
    """Print the figures as JSON, or ``rows`` (header first) as a table; remarks go to standard error."""
    from openrlhf_rpo.console import Output

    out = Output(args.json)
    out.emit(dict(figures))
    out.table(rows[0], rows[1:])
    for remark in figures["remarks"]:
        out.note(f"note: {remark}")
    out.line(f"written to {args.out}")


def _job(run: Run, command: Sequence[str]) -> Job:
    words = words_of(command, run)
    options = parsed(words, run.name)
    return Job(run, words, contents_of(options.data.prompt_dataset, options.eval.dataset))


def _check_part(args: argparse.Namespace, job: Job, part: Mapping[str, Any]) -> None:
    """Raise StudyError if the result file's figures of this run are of other options."""
    if WORDS in part and (changes := changed(part[WORDS], _words(args, job))):
        raise StudyError(
            f"{args.out} holds figures of {job.run.name} with other options ({'; '.join(changes)}): choose another file "
            "with --out, or remove that one"
        )


def _finished(jobs: Sequence[Job], parts: Mapping[str, Any]) -> list[Job]:
    done = [job for job in jobs if job.run.name in parts or finished(job.run)]
    if not done:
        raise StudyError(
            f"--finished: no run below {jobs[0].run.folder.parent.parent} is finished; leave it out to train them"
        )
    if unfinished := [job.run.name for job in jobs if job not in done]:
        print(f"note: unfinished, and left out: {', '.join(unfinished)}", file=sys.stderr)
    return done


def _words(args: argparse.Namespace, job: Job) -> list[str]:
    """The options that a run's figures depend on; names of other runs' folders are kept, relative to the study's."""
    return _without_folders([word.removeprefix(f"{folder_of(args)}/") for word in job.words])


def _without_folders(command: Sequence[str]) -> list[str]:
    """The part of a command that figures depend on: without overridden folders, absolute paths by their last part."""
    return [os.path.basename(word) if os.path.isabs(word) else word for word in without_options(command, FOLDERS)]


def _relative(data: Mapping[str, str]) -> dict[str, str]:
    return {os.path.basename(name): content for name, content in data.items()}
