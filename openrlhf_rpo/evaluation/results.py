"""Evaluations side by side: a table of their figures, and each compared with the first on the same questions."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_rpo.console import Output
from openrlhf_rpo.evaluation.figures import accuracies, compare
from openrlhf_rpo.evaluation.result import ResultError, read
from openrlhf_rpo.evaluation.sample import NAME


def show(files: Sequence[Path], out: Output, to_compare: bool) -> None:
    """Print the figures and comparisons, then raise ResultError if some results could not be compared.

    ``to_compare``: comparing was asked for, so a result that shares its questions with no other is an error, too.
    """
    if len({file.resolve() for file in files}) < len(files):
        raise ResultError("a result is named twice: one is compared with others")
    documents = [(file, _finished(file)) for file in files]
    names = _names(files)
    compared, refused = _comparisons(documents, names)
    if to_compare:
        refused += _alone(documents)
    out.emit(
        {
            "results": [{"file": str(file), **d["settings"], "figures": d["figures"]} for file, d in documents],
            "comparisons": compared,
        }
    )
    ks = sorted({int(k) for _, d in documents for k in d["figures"]["pass_at_k"]} - {1})
    out.table(
        ["result", "accuracy", "95 %", "sd", *(f"pass@{k}" for k in ks), "tokens", "truncated", "questions", "samples"],
        [_row(names[file], d["figures"], ks) for file, d in documents],
    )
    for file, document in documents:
        if judged := _judged(document):
            out.line(f"{names[file]}: {judged}")
    if compared:
        out.line("\naccuracy against the first result on the same questions, paired bootstrap over questions", "bold")
        out.table(["result", "against", "difference", "95 %", "better", "worse", "significant"], map(_difference, compared))
    if not to_compare:
        for note in _other_prompts(documents):
            out.line(note)
    if refused:
        raise ResultError("\n".join(refused))


def _comparisons(
    documents: Sequence[tuple[Path, dict[str, Any]]], names: dict[Path, str]
) -> tuple[list[dict[str, Any]], list[str]]:
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
        try:
            difference = compare(document["parts"], base["parts"])
        except ValueError as error:
            raise ResultError(f"{base_file} and {file} cannot be compared: {error}") from error
        found.append({"result": names[file], "against": names[base_file], **difference})
    return found, refused


def _alone(documents: Sequence[tuple[Path, dict[str, Any]]]) -> list[str]:
    """Why results that share their questions with no other were not compared; none for a lone one."""
    counts = Counter(document["settings"]["questions"] for _, document in documents)
    alone = [file for file, document in documents if counts[document["settings"]["questions"]] == 1]
    prompts = _other_prompts(documents)
    return prompts or [
        f"{file} was not compared: no other result has the same questions" for file in alone if len(documents) > 1
    ]


def _other_prompts(documents: Sequence[tuple[Path, dict[str, Any]]]) -> list[str]:
    """Notes on results of the same data whose chat templates make other prompts: a question is its prompt and label."""
    first: dict[str, tuple[Path, dict[str, Any]]] = {}
    found = []
    for file, document in documents:
        own = document["settings"]
        base_file, base = first.setdefault(str(own.get("data")), (file, own))
        if base["questions"] != own["questions"] and base.get("template") != own.get("template"):
            found.append(f"{base_file} and {file} were not compared: their chat templates make other prompts of one file")
    return found


def _other_setting(base: dict[str, Any], other: dict[str, Any]) -> str | None:
    for name in ("temperature", "top_p", "max_tokens", "max_len", "reward", "reward_weights", "reward_content", "judge"):
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
    try:  # all that is shown or compared
        _row(file.stem, document["figures"], [int(k) for k in document["figures"]["pass_at_k"]])
        _judged(document)
        hash(document["settings"]["questions"])
        accuracies(list(document["parts"].values()))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ResultError(f"{file} is damaged: its settings, parts or figures are not those of an evaluation") from error
    return document


def _names(files: Sequence[Path]) -> dict[Path, str]:
    """The files' names without ``.json``, in full where two are alike."""
    alike = Counter(file.stem for file in files)
    return {file: file.stem if alike[file.stem] == 1 else str(file.with_suffix("")) for file in files}


def _row(name: str, figures: dict[str, Any], ks: Sequence[int]) -> list[Any]:
    return [
        name,
        f"{figures['accuracy']:.3f}",
        _bounds(*figures["interval"]),
        None if figures["repeat_sd"] is None else f"{figures['repeat_sd']:.3f}",
        *(figures["pass_at_k"].get(str(k)) for k in ks),
        round(figures["tokens"]),
        figures["truncated"],
        figures["questions"],
        figures["samples"],
    ]


def _judged(document: dict[str, Any]) -> str:
    """How far its judge agrees with the reward; empty without a judge."""
    if (agreement := document["figures"].get("agreement")) is None:
        return ""
    judge = document["settings"].get("judge")
    return f"judged by {judge}, which agrees with the reward on {agreement:.1%} of the samples"


def _bounds(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _difference(c: dict[str, Any]) -> list[Any]:
    names = [c["result"], c["against"], f"{c['mean']:+.3f}", _bounds(c["low"], c["high"])]
    return names + [c[name] for name in ("better", "worse", "significant")]
