"""What each sample of a group starts from: the head of a stored path, or the bare question.

A group starts from the bare question (plain GRPO) if the method gives it no path or the last visit asked for it
(``Choice.start_bare``). Its prefixes then have neither path nor cut, unlike the empty prefix left by cutting a whole path.
"""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral

from openrlhf_rpo.algo.methods.method import Cut, Method, Stored
from openrlhf_rpo.types import LogProbs, Path, Prefix, as_log_probs


def choose_paths(method: Method, stored: Stored, n_samples: int) -> tuple[Path, ...]:
    """The path that each of ``n_samples`` samples continues; empty: they start from the bare question.

    Raises ValueError if the method returns any other number of paths.
    """
    last = stored.last_visit
    if last is not None and last.start_bare:
        return ()
    paths = tuple(method.paths(stored, n_samples))
    if len(paths) not in (0, n_samples):
        raise ValueError(f"method {method.name}: {len(paths)} paths for {n_samples} samples")
    return paths


def choose_prefixes(method: Method, cut: Cut, longest: int) -> tuple[Prefix, ...]:
    """One prefix per sample, at most ``longest`` tokens, so that a path that reached its length limit leaves room.

    Raises ValueError if the method returns the wrong number of cuts, or a cut outside the path.
    """
    cuts = tuple(method.cuts(cut))
    if len(cuts) != cut.n_samples:
        raise ValueError(f"method {method.name}: {len(cuts)} cuts for {cut.n_samples} samples")
    scored: Sequence[LogProbs | None] = cut.log_probs or [path.log_probs for path in cut.paths]
    heads = [_head(path, m, method.scores, longest, logs) for path, m, logs in zip(cut.paths, cuts, scored, strict=True)]
    if not method.scores:
        return tuple(heads)
    return tuple(  # a path cut by the limit continues with an ordinary draw
        replace(head, rejected=method.rejected(path, len(head), now)) if len(head) != longest else head
        for head, path, now in zip(heads, cut.paths, cut.log_probs, strict=True)
    )


def _head(path: Path, cut: int, verified: bool, longest: int, log_probs: LogProbs | None) -> Prefix:
    """All but the last ``cut`` tokens of the path, or its first ``longest``.

    A cut of 0 keeps it whole; but an end token, unless it is ``verified``, goes, as nothing could be generated behind it.
    """
    if not isinstance(cut, Integral) or not 0 <= cut <= len(path):
        raise ValueError(f"a cut of {cut} tokens does not fit a path of {len(path)}")
    least = path.finish_reason == "stop" and not verified
    cut = int(max(cut, least, len(path) - longest))  # NumPy's integers are bytes to SQLite
    kept = len(path) - cut
    if kept == 0:
        log_probs = as_log_probs()  # complete, even if the path has none
    return Prefix(path.token_ids[:kept], None if log_probs is None else log_probs[:kept], cut, path)
