"""``openrlhf-rpo report``: read the runs and write the page."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_rpo import __version__
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.console import Output
from openrlhf_rpo.durable import replacing
from openrlhf_rpo.errors import ExchangeError, UsageError
from openrlhf_rpo.reports import questions
from openrlhf_rpo.reports.event_files import read_event_files
from openrlhf_rpo.reports.page import PART, Part, document, page
from openrlhf_rpo.reports.run import Run, read_run
from openrlhf_rpo.reports.sources import Source, names, shown, source
from openrlhf_rpo.reports.text import decoder, missing_samples, newest_samples, sample_folder
from openrlhf_rpo.types import Question


@dataclass
class Loaded:
    """A run and the questions to show: ``ids``, of ``total``. A plain run has neither cache nor questions."""

    run: Run
    cache: PathCache | None = None
    known: dict[str, Question] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    total: int = 0
    decode: questions.Decode | None = None
    as_ids: bool = False
    samples: dict[str, Any] = field(default_factory=dict)


def report(args: Namespace) -> int:
    """Write the page; exit status 1 if a run could not be read and the page has the others only."""
    if args.questions < 1 or args.samples_mb < 0:
        raise UsageError("--questions must be at least 1, --samples-mb at least 0")
    out, target = Output(args.json), Path(args.out)
    _check_target(target)
    with ExitStack() as resources:
        loaded, failed = _load_all(args, resources, out)
        content = _content(args, loaded, failed)
        n_parts = sum(1 + -(-len(one.ids) // PART) for one in loaded if one.ids)
        try:
            with replacing(target) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
                bar = tqdm(_parts(loaded), total=n_parts, desc="Writing", unit="part", delay=2)
                for piece in page(content, bar):
                    file.write(piece)
        except OSError as error:
            raise ExchangeError(f"{target} cannot be written: {error.strerror or error}") from error
    size = target.stat().st_size
    out.emit({"file": str(target), "bytes": size, "left_out": failed, **content["summary"]})
    for run in content["summary"]["runs"]:
        out.line(run["name"], "bold")
        for sentence in run["notes"] + run["sentences"]:
            out.line(f"  {sentence}")
    for sentence in content["summary"]["notes"] + content["summary"]["against"]:
        out.line(sentence)
    out.line(f"\n{target}: {size / 1e6:,.1f} MB; open it in a browser")
    return 1 if failed else 0


def _check_target(target: Path) -> None:
    """Raise UsageError unless the target is new or an earlier report."""
    if target.is_dir():
        raise UsageError(f"--out {target} is a folder: name the file, such as {target / 'report.html'}")
    if target.exists():
        if not target.is_file():
            raise UsageError(f"--out {target} is no file: name one, such as report.html")
        with target.open("rb") as file:
            if not file.read(15).lower().startswith(b"<!doctype html"):
                raise UsageError(f"--out {target} exists and is no report: name another file")


def _load_all(args: Namespace, resources: ExitStack, out: Output) -> tuple[list[Loaded], list[str]]:
    """Every readable run, and why the others cannot be read. Raises UsageError if none can."""
    sources, failed = [], []
    for text in args.runs:
        try:
            sources.append(source(text))
        except UsageError as error:
            failed.append(str(error))
    loaded = []
    for one, name in zip(sources, names(sources), strict=True) if sources else ():
        try:
            loaded.append(_load(one, name, args, resources, out))
        except (CacheError, ExchangeError, UsageError) as error:
            failed.append(f"{name}: {error}")
    if not loaded:
        raise UsageError("\n".join(failed))
    for message in failed:
        out.note(f"left out: {message}")
    return loaded, failed


def _load(one: Source, name: str, args: Namespace, resources: ExitStack, out: Output) -> Loaded:
    if one.url is None:
        assert one.events is not None
        return Loaded(read_event_files(one.events, name))
    cache = resources.enter_context(PathCache.open_to_read(one.url))
    known = cache.questions()
    run = read_run(cache, name, shown(one), len(known))
    ids, total = questions.choose(cache, known, args.questions)
    decode, note = decoder(cache, args.tokenizer)
    if note:
        out.note(f"{name}: {note}")
    samples, left_out = newest_samples(sample_folder(one.url), run.latest_step, args.samples_mb)
    notes = [note for note in (missing_samples(one.url, run), left_out) if note]
    if total > len(ids):
        notes.append(f"{len(ids):,} of {total:,} questions are in this file, those visited last (--questions).")
    return Loaded(replace(run, notes=tuple(notes)), cache, known, ids, total, decode, bool(note), samples)


def _content(args: Namespace, loaded: list[Loaded], failed: list[str]) -> dict[str, Any]:
    runs = [one.run for one in loaded]
    title = args.title or ", ".join(run.name for run in runs)
    made = f"Made {datetime.now():%Y-%m-%d %H:%M} by openrlhf-rpo {__version__}"
    content = document(title, made, runs, notes=[f"Left out: {message}" for message in failed])
    for run, one in zip(content["runs"], loaded, strict=True):
        run["questions"] = {"total": one.total, "as_ids": one.as_ids} if one.ids else None
    return content


def _parts(loaded: list[Loaded]) -> Iterator[Part]:
    for number, one in enumerate(loaded):
        if not one.ids:
            continue
        index = {
            "names": questions.names(one.known, one.ids),
            "events": questions.events(one.cache, one.ids, -1, one.run.latest_step),
        }
        yield Part(f"index-{number}", index)
        for part, start in enumerate(range(0, len(one.ids), PART)):
            versions = one.cache.versions(one.ids[start : start + PART])
            yield Part(f"details-{number}-{part}", questions.details(versions, one.known, one.samples, one.decode))
