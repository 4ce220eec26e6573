"""``eval MODEL... --data DATA...``: one result file per model and data set, a batch of questions at a time."""

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.evaluation import judge
from openrlhf_rpo.evaluation.benchmarks import BENCHMARKS, rows
from openrlhf_rpo.evaluation.figures import powers_of_two, summary
from openrlhf_rpo.evaluation.result import StudyResult
from openrlhf_rpo.evaluation.session import Session, Subject, prepare, session, training_args
from openrlhf_rpo.launch.options import given_options
from openrlhf_rpo.run.files import contents_of, fingerprints
from openrlhf_rpo.types import Group, Question

NAME = "eval"
# Training options that this command replaces with its own.
_OWN = {
    "--rollout.temperature": "--temperature",
    "--rollout.top_p": "--top-p",
    "--rollout.max_new_tokens": "--max-tokens",
    "--eval.temperature": "--temperature",
    "--eval.n_samples_per_prompt": "--samples",
    "--eval.split": "openrlhf-rpo data, which writes a split to a file",
}


@dataclass(frozen=True)
class Evaluation:
    """One model on one data set. ``name`` labels its progress bar."""

    name: str
    result: StudyResult
    subject: Subject

    @property
    def missing(self) -> list[Question]:
        return [q for q in self.subject.questions if q.question_id not in self.result.parts]


def evaluate_all(args: argparse.Namespace) -> list[Path]:
    """Evaluate and return the result files by data set, then model. All models and data are checked before engines start.

    Raises UsageError, JudgeError, and ResultError for a file of other settings or one that cannot be written.
    """
    if given := sorted(given_options(args.training) & _OWN.keys()):
        raise UsageError(f"{given[0]}: leave it out and use {_OWN[given[0]]}")
    with tempfile.TemporaryDirectory(prefix="rpo-eval") as folder:
        every = [
            Evaluation(name, open_result(args, subject, data), subject)
            for data in args.data
            for subject, name in _subjects(args, data, Path(folder))
        ]
    if len({evaluation.result.file for evaluation in every}) < len(every):
        raise UsageError(
            "two of these models and data sets would write the same result: give their folders or files other names"
        )
    _check_lengths(every)
    for evaluation in every:
        evaluation.result.check_writable()
    by_model: dict[str, list[Evaluation]] = {}
    for evaluation in every:
        by_model.setdefault(evaluation.subject.args.actor.model_name_or_path, []).append(evaluation)
    for evaluations in by_model.values():
        _complete(args, evaluations)
    return [evaluation.result.file for evaluation in every]


def _check_lengths(evaluations: Sequence[Evaluation]) -> None:
    """Raise UsageError unless all models have the same --data.max_len, without which results cannot be compared."""
    names = {evaluation.subject.args.data.max_len: evaluation.name for evaluation in reversed(evaluations)}
    if len(names) > 1:
        (shorter, one), *_, (longer, other) = sorted(names.items())
        raise UsageError(
            f"{one} and {other} could not be compared: --data.max_len, by default a model's own context, would be {shorter} "
            f"for one and {longer} for the other. Give both the same with --data.max_len {shorter}"
        )


def _subjects(args: argparse.Namespace, data: str, folder: Path) -> list[tuple[Subject, str]]:
    """Every model with the questions of one data set, and a label for the progress bar."""
    words = list(args.training)
    source = data
    if data in BENCHMARKS:
        source = str(folder / f"{data}.jsonl")
        Path(source).write_text("".join(json.dumps(row) + "\n" for row in rows(data, args.benchmarks)), encoding="utf-8")
        words += ["--data.input_key", "question", "--data.label_key", "answer"]
    elif not Path(data).exists():
        raise UsageError(f"--data {data}: there is no such file, and the benchmarks are {', '.join(BENCHMARKS)}")
    if args.max_tokens is not None:
        words += ["--rollout.max_new_tokens", str(args.max_tokens)]
    return [(prepare(training_args(model, source, words)), f"{model} on {data}") for model in args.models]


def open_result(args: argparse.Namespace, subject: Subject, data: str) -> StudyResult:
    """The result file of one model and data set, new or continued. Raises ResultError if its settings differ."""
    run = subject.args
    marks = fingerprints(run, subject.questions, subject.tokenizer)
    files = [url for url in run.reward.remote_url or [] if url.endswith(".py")]
    settings = {
        "model": run.actor.model_name_or_path,
        "weights": marks["weights"],
        "data": data,
        "questions": marks["data"],
        "template": marks["template"],
        "tokenizer": marks["tokenizer"],
        "samples": args.samples,
        "repeats": args.repeats,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_tokens": args.max_tokens,
        "max_len": run.data.max_len,
        "dtype": run.ds.param_dtype,
        "seed": run.train.seed,
        "reward": run.rpo.reward.functions or run.reward.remote_url,
        "reward_content": contents_of(*files) or None,
        "reward_weights": run.rpo.reward.weights,
        "judge": f"lighteval {judge.version(args.lighteval)}" if args.lighteval else None,
    }
    name = f"{label(run.actor.model_name_or_path)}-{label(data)}{'-lighteval' if args.lighteval else ''}.json"
    return StudyResult.open(args.out / name, NAME, settings)


def label(place: str) -> str:
    """A file name: the last two parts of a folder or hub name, the stem of a data file."""
    path = Path(place)
    parts = [path.stem] if path.suffix in (".jsonl", ".json", ".parquet", ".csv") else list(path.parts[-2:])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(parts)).strip("-.")


def _complete(args: argparse.Namespace, evaluations: Sequence[Evaluation]) -> None:
    """Sample the missing questions of one model's evaluations on the same engines, and write the figures."""
    n = args.samples * args.repeats
    unfinished = [evaluation for evaluation in evaluations if evaluation.missing]
    if unfinished:
        with session(unfinished[0].subject) as opened:
            for evaluation in unfinished:
                _sample(args, opened, evaluation, n)
    for evaluation in evaluations:
        if args.lighteval:
            _judge(args.lighteval, evaluation)
        parts = [evaluation.result.parts[q.question_id] for q in evaluation.subject.questions]
        evaluation.result.finish(summary(parts, args.repeats, sorted(set(args.pass_k or powers_of_two(n)))))


def _sample(args: argparse.Namespace, opened: Session, evaluation: Evaluation, n: int) -> None:
    """Add the missing parts. Sample i has the same seed as sample i of an evaluation in training."""
    from openrlhf_rpo.rollout.rollout import EVAL_STEP

    todo, every = evaluation.missing, len(evaluation.subject.questions)
    sampling = replace(opened.rollout.sampling, n_samples=n, temperature=args.temperature, top_p=args.top_p)
    with tqdm(total=every, initial=every - len(todo), desc=evaluation.name, unit="question", dynamic_ncols=True) as bar:
        for start in range(0, len(todo), args.batch):
            batch = todo[start : start + args.batch]
            groups = opened.rollout.sample_bare(batch, sampling, EVAL_STEP, lambda group: bar.update())
            tokenizer = opened.tokenizer if args.lighteval else None
            evaluation.result.add_all({group.question.question_id: _part(group, tokenizer) for group in groups})


def _part(group: Group, tokenizer: Any | None) -> dict[str, Any]:
    """The stored figures of a question's samples; with a tokenizer also their texts, for the judge."""
    part = {
        "label": group.question.label,
        "scores": [sample.score for sample in group.samples],
        "tokens": [len(sample.response_ids) for sample in group.samples],
        "truncated": [sample.truncated for sample in group.samples],
    }
    if tokenizer is None:
        return part
    texts = [tokenizer.decode(sample.response_ids.tolist(), skip_special_tokens=True) for sample in group.samples]
    return part | {"texts": texts}


def _judge(folder: Path, evaluation: Evaluation) -> None:
    """Replace scores and texts by lighteval's scores; the reward's scores are kept as ``rewards``."""
    asked = {q.question_id: q for q in evaluation.subject.questions}
    waiting = {name: part for name, part in evaluation.result.parts.items() if "texts" in part}
    if not waiting:
        return
    rows = [judge.Answered(asked[name].text, asked[name].label, part["texts"]) for name, part in waiting.items()]
    scores = judge.judge(folder, rows)
    judged = {}
    for (name, part), found in zip(waiting.items(), scores, strict=True):
        judged[name] = {k: v for k, v in part.items() if k != "texts"} | {"scores": found, "rewards": part["scores"]}
    evaluation.result.add_all(judged)
