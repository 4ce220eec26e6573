"""The sub-commands that only read a cache, even while its run writes: info, history, stats, diff, verify."""

from argparse import Namespace
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.console import Output
from openrlhf_rpo.exchange.places import at_step, cache_place, find_question, open_to_read
from openrlhf_rpo.reports import cache_figures
from openrlhf_rpo.reports.cache_figures import StepFigures, difference, figures_by_step
from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL
from openrlhf_rpo.types import Visit

_LISTED = 20


def info(args: Namespace, out: Output) -> int:
    """Print where the cache is, which run it belongs to, and the run's progress."""
    url = cache_place(args.cache)
    with PathCache.open_to_read(url) as cache:
        records, evaluations = cache.records(max(cache.latest_step - 1, 0)), cache.evaluations()
        totals = records[-1].metrics if records else {}
        document: dict[str, Any] = {
            "cache": url,
            "bytes": cache_size(url),
            "model": cache.model,
            "questions": len(cache.questions()) or None,
            "questions_with_a_path": cache.count(),
            "initial_cache_complete": cache.initialised,
            "latest_step": cache.latest_step,
            "readable_from_step": cache.kept_from,
            "tokens_generated": totals.get(GENERATED_TOTAL, cache.initial_tokens),
            "tokens_reused": totals.get(REUSED_TOTAL, 0),
            "evaluations": len(evaluations),
            "fingerprints": cache.fingerprints,
        }
    out.emit(document)
    out.pairs(document)
    return 0


def history(args: Namespace, out: Output) -> int:
    """Print every visit to a question."""
    with open_to_read(args.cache) as cache:
        question_id = find_question(cache, args.question)
        visits = [asdict(visit) for visit in cache.visits_of(question_id)]
    out.emit({"question_id": question_id, "visits": visits})
    out.line(f"question {question_id}, visits: {len(visits)}", "bold")
    columns = [field.name for field in fields(Visit) if field.name != "question_id"]
    out.table(columns, [[visit[name] for name in columns] for visit in visits])
    return 0


def stats(args: Namespace, out: Output) -> int:
    """Print reward, length and age of the cached paths, and the share replaced, by step."""
    with open_to_read(args.cache) as cache:
        figures = [asdict(f) for f in figures_by_step(cache.outlines(), cache.records(), cache.kept_from)]
    out.emit({"steps": figures})
    columns = [field.name for field in fields(StepFigures)]
    out.table(columns, [[row[name] for name in columns] for row in figures])
    return 0


def diff(args: Namespace, out: Output) -> int:
    """Print the paths that changed between two steps."""
    with open_to_read(args.cache) as cache:
        steps = [at_step(cache, step) for step in (args.before, args.after)]
        before, after = (cache_figures.at_step(cache.outlines(), step) for step in steps)
        known = cache.questions()
    changes = difference(before, after)
    changed = [
        {
            "question_id": i,
            "question": known[i].text if i in known else None,
            "before": before[i]._asdict() if i in before else None,
            "after": after[i]._asdict() if i in after else None,
        }
        for i in sorted(changes["replaced"] + changes["added"] + changes["removed"])
    ]
    counts = {name: len(value) if isinstance(value, list) else value for name, value in changes.items()}
    out.emit({"before": steps[0], "after": steps[1], **counts, "changed": changed})
    out.line(f"step {steps[0]} to step {steps[1]}: " + ", ".join(f"{n:,} {name}" for name, n in counts.items()), "bold")
    out.table(("question_id", "step", "length", "score", "reward", "question"), map(_change, changed[:_LISTED]))
    if len(changed) > _LISTED:
        out.line(f"and {len(changed) - _LISTED:,} more (--json lists all)")
    return 0


def verify(args: Namespace, out: Output) -> int:
    """Decode every row. Exit status 1 when one is damaged."""
    checked = 0
    with open_to_read(args.cache) as cache, tqdm(desc="Verifying", unit="row", delay=2) as bar:

        def progress(done: int, total: int) -> None:
            nonlocal checked
            bar.total = total
            bar.update(done - checked)
            checked = done

        damages = cache.verify(progress)
    out.emit({"rows": checked, "damages": damages})
    for damage in damages:
        out.line(damage, "red")
    out.line(f"{checked:,} rows: " + (f"damaged: {len(damages)}" if damages else "all are intact"), "bold")
    return 1 if damages else 0


def _change(row: dict[str, Any]) -> list[str]:
    def both(name: str) -> str:
        sides = [row[side] for side in ("before", "after")]
        return " > ".join("-" if side is None else f"{side[name]:g}" for side in sides)

    question = (row["question"] or "")[:40].replace("\n", " ")
    return [row["question_id"], both("step"), both("length"), both("score"), both("reward"), question]


def cache_size(url: str) -> int | None:
    """Bytes of an SQLite file and its write-ahead log; None for a server's database."""
    if not url.startswith("sqlite:///"):
        return None
    file = Path(url.removeprefix("sqlite:///"))
    return sum(part.stat().st_size for part in (file, file.with_name(file.name + "-wal")) if part.exists())
