"""The groups that a step leaves to later ones: a row for every sample, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openrlhf_rpo.cache.codec import (
    CodecError,
    decode_log_probs,
    decode_token_ids,
    encode_log_probs,
    encode_token_ids,
)
from openrlhf_rpo.cache.columns import parts_of, parts_text, wrong_parts
from openrlhf_rpo.cache.models import UnfinishedRow
from openrlhf_rpo.cache.rows import Read, check, name_of
from openrlhf_rpo.types import Begun, Path, Prefix, Sample

OF_GROUP = (UnfinishedRow.due, UnfinishedRow.place, UnfinishedRow.asked)
"""The columns in which all samples of a group have the same value."""


def unfinished_values(group: Begun, step: int, place: int) -> list[dict[str, Any]]:
    """The columns of the samples of a group that waits after ``step``, at ``place`` among all that do.

    Raises ValueError if they cannot be stored.
    """
    question, due = group.question_id, group.due
    if due <= step:
        raise ValueError(f"the group of question {question} waits after step {step} for step {due}")
    if not group.samples:
        raise ValueError(f"the group of question {question} waits without samples")
    own = {"step": step, "question_id": question, "due": due, "place": place, "asked": group.asked}
    try:
        return [own | {"number": number} | _values(question, sample) for number, sample in enumerate(group.samples)]
    except ValueError as error:
        raise ValueError(f"the samples of question {question} cannot be stored: {error}") from error


def _values(question: str, sample: Sample) -> dict[str, Any]:
    path, logs = sample.prefix.path, sample.prefix.log_probs
    path_id = None if path is None else path.path_id
    if (len(sample.prefix) and path_id is None) or (path is not None and path.question_id != question):
        raise ValueError(f"a prefix of {len(sample.prefix)} tokens of no stored path of this question")
    own = path is None or logs is None or (path.log_probs or ())[: len(logs)] == logs
    return {
        "token_ids": encode_token_ids(sample.response_ids),
        "log_probs": encode_log_probs(sample.response_log_probs, exact=True),
        "finish_reason": sample.finish_reason,
        "prefix_length": len(sample.prefix),
        "prefix_log_probs": None if own or logs is None else encode_log_probs(logs, exact=True),
        "cut": sample.prefix.cut,
        "path_id": path_id,
        "parts": parts_text(sample.parts, len(sample.response_ids)),
    }


def begun_of(rows: Sequence[Read], paths: Mapping[int, Path]) -> list[Begun]:
    """The groups of a step's rows, in the order of their places; ``paths`` by id. Raises ``CodecError`` for damage."""
    groups: dict[str, list[Read]] = {}
    for row in sorted(rows, key=lambda row: (row.place, row.question_id, row.number)):
        groups.setdefault(row.question_id, []).append(row)
    return [_begun_of(own, paths) for own in groups.values()]


def _begun_of(rows: Sequence[Read], paths: Mapping[int, Path]) -> Begun:
    samples = tuple(sample_of(row, paths.get(row.path_id)) for row in rows)
    first, kinds = rows[0], {tuple(getattr(row, column.key) for column in OF_GROUP) for row in rows}
    if len(kinds) > 1 or [row.number for row in rows] != list(range(len(rows))):
        raise CodecError(damaged_group(first))
    return Begun(first.question_id, samples, first.asked, first.due)


def damaged_group(row: Read) -> str:
    """The message about a group whose rows do not fit together; ``row``: its question and step."""
    return f"the unfinished samples of question {row.question_id!s:.80} at step {row.step} are no group"


def sample_of(row: Read, path: Path | None) -> Sample:
    """The sample of a row; ``path`` has its ``path_id``. Raises ``CodecError`` when it is damaged."""
    sample = response_of(row)
    if row.path_id is None:
        return replace(sample, prefix=Prefix(cut=row.cut))
    if path is None or path.question_id != row.question_id or len(path) < row.prefix_length:
        raise CodecError(impossible_path(row))
    own = path.log_probs[: row.prefix_length] if path.log_probs is not None else None
    logs = own if row.prefix_log_probs is None else decode_log_probs(row.prefix_log_probs)
    return replace(sample, prefix=Prefix(path.token_ids[: row.prefix_length], logs, row.cut, path))


def impossible_path(row: Read) -> str:
    """The message about a sample whose prefix is of no path of its question."""
    return f"{name_of(row, UnfinishedRow)} has an impossible path, path {row.path_id}"


def response_of(row: Read) -> Sample:
    """The sample of a row without its prefix. Raises ``CodecError`` when it is damaged."""
    check(row, UnfinishedRow)
    try:
        ids, logs, parts = decode_token_ids(row.token_ids), decode_log_probs(row.log_probs), parts_of(row.parts)
        kept = row.prefix_length if row.prefix_log_probs is None else len(decode_log_probs(row.prefix_log_probs))
        if (len(logs), kept) != (len(ids), row.prefix_length):
            raise CodecError("its lengths differ")
        if what := wrong_parts(parts, len(ids)):
            raise CodecError(what)
    except CodecError as error:
        raise CodecError(f"{name_of(row, UnfinishedRow)} is damaged ({error})") from error
    return Sample(Prefix(), ids, logs, row.finish_reason, parts=parts)
