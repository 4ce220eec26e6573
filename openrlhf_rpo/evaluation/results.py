"""Evaluations side by side: a table of their figures, and each compared with the first on the same questions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_rpo.console import Output
from openrlhf_rpo.evaluation.figures import compare
from openrlhf_rpo.evaluation.result import ResultError, read
from openrlhf_rpo.evaluation.sample import NAME


def show(files: Sequence[Path], out: Output) -> None:
    """Print the figures and comparisons, then raise ResultError if some results could not be compared."""
    documents = [(file, _finished(file)) for file in files]
    compared, refused = comparisons(documents)
    out.emit(
        {
            "results": [{"file": str(file), **d["settings"], "figures": d["figures"]} for file, d in documents],
            "comparisons": compared,
        }
    )
    ks = sorted({int(k) for _, d in documents for k in d["figures"]["pass_at_k"]} - {1})
    out.table(
        ["result", "accuracy", "95 %", "sd", *(f"pass@{k}" for k in ks), "tokens", "truncated", "questions", "samples"],
        [_row(file, d["figures"], ks) for file, d in documents],
    )
    for file, document in documents:
        if (agreement := document["figures"].get("agreement")) is not None:
            judge = document["settings"]["judge"]
            out.line(f"{file.stem}: judged by {judge}, which agrees with the reward on {agreement:.1%} of the samples")
    if compared:
        out.line("\naccuracy against the first result on the same questions, paired bootstrap over questions", "bold")
        out.table(["result", "against", "difference", "95 %", "better", "worse", "significant"], map(_difference, compared))
    if refused:
        raise ResultError("\n".join(refused))


def comparisons(documents: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Each result against the first one with the same questions, and the reasons why others were not compared."""
    first: dict[str, tuple[Path, dict[str, Any]]] = {}
    found, refused = [], []
    for file, document in documents:
        base_file, base = first.setdefault(document["settings"]["questions"], (file, document))
        if base_file == file:
            continue
        if difference := _other_setting(base["settings"], document["settings"]):
            refused.append(f"{base_file} and {file} cannot be compared: {difference}")
            continue
        found.append({"result": file.stem, "against": base_file.stem, **compare(document["parts"], base["parts"])})
    return found, refused


def _other_setting(base: dict[str, Any], other: dict[str, Any]) -> str | None:
    for name in ("temperature", "top_p", "max_tokens", "max_len", "reward", "reward_content", "judge"):
        ours, theirs = base.get(name), other.get(name)
        if ours != theirs:
            return f"{name} is {ours} in one and {theirs} in the other"
    return None


def _finished(file: Path) -> dict[str, Any]:
    document = read(file)
    if document["study"] != NAME:
        raise ResultError(f"{file} is the result of the study {document['study']}, not of an evaluation")
    if document["figures"] is None:
        raise ResultError(f"{file} is not finished; this command goes on where it stopped: {document['command']}")
    return document


def _row(file: Path, figures: dict[str, Any], ks: Sequence[int]) -> list[Any]:
    return [
        file.stem,
        f"{figures['accuracy']:.3f}",
        _bounds(*figures["interval"]),
        None if figures["repeat_sd"] is None else f"{figures['repeat_sd']:.3f}",
        *(figures["pass_at_k"].get(str(k)) for k in ks),
        round(figures["tokens"]),
        figures["truncated"],
        figures["questions"],
        figures["samples"],
    ]


def _bounds(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _difference(c: dict[str, Any]) -> list[Any]:
    names = [c["result"], c["against"], f"{c['mean']:+.3f}", _bounds(c["low"], c["high"])]
    return names + [c[name] for name in ("better", "worse", "significant")]
