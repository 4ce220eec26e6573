"""What a group starts from: the head of the question's cached path, or the bare question (spec section 2).

A group starts bare, which is plain GRPO, when no path is cached, when the last visit asked for it
(``on_all_wrong reset``), or when the keyed draw u ~ U(0, 1) falls below ``fresh_share``. Its prefixes then have no
path and no cut. A cut of the whole path is empty, too, but remembers both.
"""

from openrlhf_rpo.algo.cut import CUT_RULES, CutContext
from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path, Prefix, Visit


def choose_prefixes(
    path: Path | None,
    last_visit: Visit | None,
    n_samples: int,
    options: CutOptions,
    seed: int,
    step: int,
    question_id: str,
    longest: int | None = None,
) -> tuple[Prefix, ...]:
    """One prefix for each of ``n_samples`` samples; with ``scope group`` they are equal.

    No prefix is longer than ``longest`` tokens, so that a path that filled its length limit leaves room for a response.
    ``path`` is the question's cached path, ``last_visit`` its newest visit, each None when there is none. Raises
    ValueError when the cut rule breaks its contract (the number of cuts, or a cut outside the path).
    """
    if path is None or (last_visit is not None and last_visit.start_bare):
        return (Prefix(),) * n_samples
    if keyed_generator(seed, step, question_id, "fresh").random() < options.fresh_share:
        return (Prefix(),) * n_samples
    generator = keyed_generator(seed, step, question_id, "cut")
    cuts = CUT_RULES[options.rule](CutContext(path, last_visit, n_samples, options, generator))
    if len(cuts) != n_samples:
        raise ValueError(f"cut rule {options.rule}: {len(cuts)} cuts for {n_samples} samples")
    return tuple(_head(path, cut, longest) for cut in cuts)


def _head(path: Path, cut: int, longest: int | None) -> Prefix:
    """All but the last ``cut`` tokens of the path's own ids, or its first ``longest``; a cut of 0 keeps it whole."""
    if not 0 <= cut <= len(path):
        raise ValueError(f"a cut of {cut} tokens does not fit a path of {len(path)}")
    if longest is not None:
        cut = max(cut, len(path) - longest)
    kept = len(path) - cut
    if kept == 0:
        log_probs: tuple[float, ...] | None = ()  # nothing is missing, even where the path has none
    else:
        log_probs = None if path.log_probs is None else path.log_probs[:kept]
    return Prefix(path.token_ids[:kept], log_probs, cut, path)
