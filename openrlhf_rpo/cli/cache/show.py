"""``cache show``: a path as text, by the step that sampled each part, its lineage, and what the last cut dropped."""

from argparse import Namespace
from itertools import zip_longest
from typing import Any

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.console import Output
from openrlhf_rpo.exchange.places import at_step, find_question, find_tokenizer, open_to_read
from openrlhf_rpo.exchange.text import pieces
from openrlhf_rpo.types import OWN, UNKNOWN, Path

_COLOURS = ("cyan", "yellow", "magenta", "blue", "bright_cyan", "bright_yellow")
_NEWEST, _DROPPED = "bold green", "red strike"


def show(args: Namespace, out: Output) -> int:
    """Print a question's path at a step."""
    with open_to_read(args.cache) as cache:
        step = at_step(cache, args.step)
        question_id = find_question(cache, args.question)
        tokenizer, note = find_tokenizer(cache, args.tokenizer)
        view = path_view(cache, question_id, step, tokenizer)
    if note:
        out.note(note)
    out.emit(view)
    _print(view, out)
    return 0


def path_view(cache: PathCache, question_id: str, step: int, tokenizer: Any) -> dict[str, Any]:
    """The output of ``--json``. Texts are null without a tokenizer; ``path`` and ``dropped`` are null if there is none."""
    question = cache.questions().get(question_id)
    lineage = cache.lineage(question_id, step)
    generations = [_generation(path, parent) for path, parent in zip_longest(lineage, lineage[1:])]
    others = cache.slots([question_id], step).get(question_id, {})
    return {
        "question_id": question_id,
        "question": question.text if question is not None else None,
        "label": question.label if question is not None else None,
        "step": step,
        "path": generations[0] | {"token_ids": list(lineage[0].token_ids)} if lineage else None,
        "lineage": generations,
        "parts": _parts(lineage, tokenizer) if lineage else [],
        "versions": [part._asdict() for part in lineage[0].parts] if lineage else [],
        "dropped": _dropped(*lineage[:2], tokenizer) if len(lineage) > 1 else None,
        "others": [
            {"slot": slot, "step": path.step, "length": len(path), "score": path.score, "reward": path.reward}
            for slot, path in others.items()
            if slot != OWN
        ],
    }


def _parts(lineage: list[Path], tokenizer: Any) -> list[dict[str, Any]]:
    ids, bounds = lineage[0].token_ids, parts(lineage)
    texts = [None] * len(bounds) if tokenizer is None else pieces(ids, [end for _, end, _ in bounds], tokenizer)
    return [
        {"step": step, "from": start, "to": end, "text": text, "token_ids": list(ids[start:end])}
        for (start, end, step), text in zip(bounds, texts, strict=True)
    ]


def parts(lineage: list[Path]) -> list[tuple[int, int, int | None]]:
    """The parts of the newest path, in order: (first token, end, step that sampled them or None if it was pruned)."""
    found: list[tuple[int, int, int | None]] = []
    end = len(lineage[0])
    for path in lineage:
        if path.prefix_length < end:
            found.append((path.prefix_length, end, path.step))
            end = path.prefix_length
    if end:
        found.append((0, end, None))
    return found[::-1]


def _generation(path: Path, parent: Path | None) -> dict[str, Any]:
    return {
        "step": path.step,
        "length": len(path),
        "kept": path.prefix_length,
        "cut": len(parent) - path.prefix_length if parent is not None else None,
        "new": len(path) - path.prefix_length,
        "score": path.score,
        "reward": path.reward,
        "finish_reason": path.finish_reason,
        "log_probs": path.log_probs is not None,
    }


def _dropped(path: Path, parent: Path, tokenizer: Any) -> dict[str, Any]:
    kept = path.prefix_length
    ids = parent.token_ids[kept:]
    text = None if tokenizer is None else pieces(parent.token_ids, [kept, len(parent)], tokenizer)[1]
    return {"step": parent.step, "from": kept, "to": len(parent), "text": text, "token_ids": list(ids)}


def _print(view: dict[str, Any], out: Output) -> None:
    out.line(f"question {view['question_id']}", "bold")
    if view["question"] is not None:
        out.line(f"{view['question']}\nlabel {view['label']}")
    if view["path"] is None:
        out.line(f"no cached path at step {view['step']}")
    else:
        _print_path(view, out)
    if view["others"]:
        out.line("\nother stored paths", "bold")
        out.table(list(view["others"][0]), [list(other.values()) for other in view["others"]])


def _print_path(view: dict[str, Any], out: Output) -> None:
    out.line(f"\nits path at step {view['step']} and the paths it was cut from, newest first", "bold")
    out.table(list(view["lineage"][0]), [list(generation.values()) for generation in view["lineage"]])
    out.line("\nthe path, by the step that sampled each part", "bold")
    if view["versions"]:
        out.line(sampled_by(view["versions"]), "dim")
    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(view["parts"]) - 1)] + [_NEWEST]
    for part, colour in zip(view["parts"], colours, strict=True):
        origin = "of a pruned step" if part["step"] is None else f"of step {part['step']}"
        _block(out, f"tokens {part['from']} to {part['to'] - 1}, {origin}", part, colour)
    dropped = view["dropped"]
    if dropped is not None and dropped["token_ids"]:
        title = f"dropped from the path of step {dropped['step']}: its tokens {dropped['from']} to {dropped['to'] - 1}"
        _block(out, title, dropped, _DROPPED)


def sampled_by(versions: list[dict[str, int]]) -> str:
    """The line that says which policies sampled the path."""
    names = ["unknown" if part["version"] == UNKNOWN else str(part["version"]) for part in versions]
    first, *more = [f"{name} ({part['n_tokens']}" for name, part in zip(names, versions, strict=True)]
    return "sampled by policy version " + ", ".join([f"{first} tokens)", *(f"{part})" for part in more)])


def _block(out: Output, title: str, part: dict[str, Any], style: str) -> None:
    out.line(f"── {title}", "dim")
    text = " ".join(map(str, part["token_ids"])) if part["text"] is None else part["text"]
    out.line(text, style)
