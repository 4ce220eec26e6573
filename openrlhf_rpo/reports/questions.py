"""The questions of a run for the page: an index of all of them, and what happened to each.

A path keeps the head of its parent, so a lineage stored as whole texts would repeat that head in every generation. Instead
each path holds its parent's index, the length of text they share, and the rest of its text; the page joins them. Positions
count UTF-16 units, as JavaScript does.

A path whose parent is missing (``parent`` -1) holds all of its text. ``elsewhere`` is true if that parent is in another
slot, such as a wrong path; otherwise it was pruned.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.reports.run import rounded
from openrlhf_rpo.types import Path, Question

Decode = Callable[[list[Sequence[int]]], list[str]]
"""Lists of token ids as texts, special tokens included."""

Samples = Mapping[int, list[dict[str, Any]]]
"""Step -> the samples of one question, as rows of ``run.samples``."""

INDEX_TEXT = 300
"""Characters of a question that the list shows and searches; the details hold the whole text."""


def choose(cache: CacheHistory, known: Iterable[str], limit: int | None) -> tuple[list[str], int]:
    """The ids to show (at most ``limit``, the last visited), sorted, and the number of all.

    All: the ids of ``known``, the run's questions, and those that have a path.
    """
    ids = {*known, *cache.question_ids()}
    if limit is None or len(ids) <= limit:
        return sorted(ids), len(ids)
    last = cache.last_visits()
    newest = sorted(ids, key=lambda question_id: (-last.get(question_id, -1), question_id))
    return sorted(newest[:limit]), len(ids)


def events(cache: CacheHistory, ids: Sequence[str], after: int, until: int) -> dict[str, Any]:
    """Every path and visit of the steps after ``after`` up to ``until`` as columns; ``q`` is the index into ``ids``.

    The page builds its list of questions from them and updates it with those of later steps.
    """
    number = {question_id: i for i, question_id in enumerate(ids)}
    paths = [row for row in cache.outlines(after) if row.step <= until and row.question_id in number]
    visits = [v for v in cache.visits_after(max(after, 0)) if v.step <= until and v.question_id in number]
    return {
        "paths": {
            "q": [number[row.question_id] for row in paths],
            "step": [row.step for row in paths],
            "tokens": [row.length for row in paths],
            "score": [rounded(row.score) for row in paths],
            "reward": [rounded(row.reward) for row in paths],
        },
        "visits": {
            "q": [number[visit.question_id] for visit in visits],
            **{
                name: [getattr(visit, name) for visit in visits]
                for name in (
                    *("step", "asked", "cut", "prefix_length", "shortest_path", "n_samples", "n_rewarded"),
                    *("outcome", "slot"),
                )
            },
            "start_bare": [int(visit.start_bare) for visit in visits],
        },
    }


def names(known: Mapping[str, Question], ids: Sequence[str]) -> dict[str, list[str]]:
    """What the list says about each question; texts are empty in a cache without questions."""
    found = [known.get(question_id) for question_id in ids]
    return {
        "ids": list(ids),
        "texts": ["" if q is None else (q.text or q.prompt)[:INDEX_TEXT] for q in found],
        "labels": ["" if q is None else q.label for q in found],
    }


def details(
    versions: Mapping[str, list[Path]],
    known: Mapping[str, Question],
    samples: Mapping[str, Samples],
    decode: Decode,
) -> list[dict[str, Any]]:
    """What happened to each question of ``versions`` (its stored paths, oldest first), in their order."""
    paths = [path for stored in versions.values() for path in stored]
    texts = dict(zip(map(_key, paths), decode([path.token_ids.tolist() for path in paths]), strict=True))
    kept = [path for path in paths if path.prefix_length]
    heads = dict(zip(map(_key, kept), decode([p.token_ids[: p.prefix_length].tolist() for p in kept]), strict=True))
    return [
        {
            "question": None if (q := known.get(question_id)) is None else {"text": q.text, "prompt": q.prompt},
            "paths": _lineage(stored, texts, heads),
            "samples": _sampled(samples.get(question_id, {})),
        }
        for question_id, stored in versions.items()
    ]


def _lineage(stored: list[Path], texts: Mapping[Any, str], heads: Mapping[Any, str]) -> list[dict[str, Any]]:
    position = {path.path_id: i for i, path in enumerate(stored)}
    found = []
    for path in stored:
        text = texts[_key(path)]
        # A character split by the cut belongs to the new part.
        kept = text[: len(heads[_key(path)].rstrip("\ufffd"))] if path.prefix_length else ""
        parent = position.get(path.parent_id, -1) if path.parent_id is not None else -1
        shared = _common(text, texts[_key(stored[parent])], len(kept)) if parent >= 0 else 0
        found.append(
            {
                "step": path.step,
                "parent": parent,
                "elsewhere": parent < 0 and path.parent_id is not None,
                "shared": _utf16(text[:shared]),
                "kept": _utf16(kept),
                "text": text[shared:],
                "tokens": len(path),
                "kept_tokens": path.prefix_length,
                "score": rounded(path.score),
                "reward": rounded(path.reward),
                "finish": path.finish_reason,
            }
        )
    return found


def _sampled(steps: Samples) -> dict[int, list[dict[str, Any]]]:
    return {
        step: [
            {
                "score": rounded(row["score"]),
                "reward": rounded(row["shaped_reward"]),
                "prefix": row["prefix_length"],
                "tokens": row["path_length"] - row["prefix_length"],
                "finish": row["finish_reason"],
                "trained_on": row["trained_on"],
                "text": row["response"],
            }
            for row in rows
        ]
        for step, rows in sorted(steps.items())
    }


def _key(path: Path) -> tuple[str, int]:
    return path.question_id, path.step


def _common(text: str, other: str, most: int) -> int:
    """Length of the common beginning, at most ``most``; shorter only if the tokenizer merges text across the cut."""
    if text[:most] == other[:most]:
        return most
    return next(i for i in range(most) if text[i : i + 1] != other[i : i + 1])


def _utf16(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
