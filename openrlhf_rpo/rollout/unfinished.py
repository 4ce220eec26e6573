"""Unfinished samples: what a rollout begins, continues, and leaves for the next step (``--rpo.tail``).

A rollout lasts as long as its longest sample. With a tail share s, n / s groups are begun where n are wanted; the n whose
longest samples are shortest are done, and all others are cut to the longest of these (after APRIL, arXiv 2509.18521, which
stops whatever runs when enough is done). Lengths count only this step's tokens, which are what takes time. So which groups
are done depends on the samples, not on timing, and a killed run repeats it. The next step continues every waiting group
before it begins any other; the cache keeps prefix, tokens and log-probs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from openrlhf_rpo.algo.parts import extended, head
from openrlhf_rpo.rollout.requests import Generated
from openrlhf_rpo.types import FinishReason, Part, Prefix, Sample, as_ids, as_log_probs

_REASONS: dict[str, FinishReason] = {"length": "length", "unfinished": "unfinished"}


def begin(prefixes: Iterable[Prefix]) -> tuple[Sample, ...]:
    """Samples without a token."""
    return tuple(Sample(prefix, as_ids(), as_log_probs(), "unfinished") for prefix in prefixes)


def whole(sample: Sample, version: int) -> Sample:
    """The sample of a verified prefix; finished if policy ``version`` accepted a path up to its end token.

    That token then counts as the response, which is so never empty.
    """
    prefix = sample.prefix
    if prefix.cut or prefix.log_probs is None or prefix.path is None or prefix.path.finish_reason != "stop":
        return sample
    start = replace(prefix, token_ids=prefix.token_ids[:-1], log_probs=prefix.log_probs[:-1], cut=1)
    return Sample(start, prefix.token_ids[-1:], prefix.log_probs[-1:], "stop", parts=(Part(version, 1),))


def count(samples: Iterable[Sample]) -> int:
    """Tokens generated so far."""
    return sum(len(sample.response_ids) for sample in samples)


def go_on(begun: Sequence[Sample], generated: Sequence[Generated], version: int) -> tuple[Sample, ...]:
    """The samples, with what policy ``version`` generated, in order, appended to the unfinished ones."""
    new = iter(generated)
    return tuple(_longer(s, next(new), version) if s.finish_reason == "unfinished" else s for s in begun)


def _longer(sample: Sample, new: Generated, version: int) -> Sample:
    return replace(
        sample,
        response_ids=sample.response_ids + new.token_ids,
        response_log_probs=sample.response_log_probs + new.log_probs,
        finish_reason=_REASONS.get(new.finish_reason, "stop"),
        parts=extended(head(sample.parts, len(sample.response_ids)), version, len(new.token_ids)),
    )


def tail(longest: Sequence[float], enough: int) -> tuple[int, list[bool]]:
    """Where waiting groups are cut, in new tokens, and for each group whether it waits.

    ``longest``: the new tokens of each group's longest sample, infinite if it was stopped. Among equals the first are done.
    """
    order = sorted(range(len(longest)), key=lambda i: longest[i])
    late = set(order[enough:])
    done = [longest[i] for i in order[:enough]]
    return int(max(1, *done)) if late else 0, [i in late for i in range(len(longest))]


def shortened(new: Generated, limit: int) -> Generated:
    """The first ``limit`` tokens; unfinished if there are more."""
    if len(new.token_ids) <= limit:
        return new
    return Generated(new.token_ids[:limit], new.log_probs[:limit], "unfinished")
