"""What a group starts from: the head of one of the question's stored paths, or the bare question (spec section 2).

A group starts bare, which is plain GRPO, when there is no path to cut, when the last visit asked for it
(``on_all_wrong reset``), when it was replayed ``max_reuses`` times in a row, or when the keyed draw u ~ U(0, 1) falls below
``fresh_share``. Its prefixes then have no path and no cut. A cut of the whole path is empty, too, but remembers both.
"""

from dataclasses import replace

from openrlhf_rpo.algo.cut import CutContext, CutRule, Stored, cut_rule
from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path, Prefix, Visit


def choose_rule(stored: Stored, options: CutOptions, seed: int, step: int, question_id: str) -> CutRule | None:
    """The rule that cuts for this group, or None: it starts from the bare question.

    After a group that was all right or all wrong, ``after_all_right`` and ``after_all_wrong`` name another rule; where
    its path is not there, ``rule`` has its turn. Raises ``UserRuleError``.
    """
    last = stored.last_visit
    if last is not None and last.start_bare:
        return None
    if options.max_reuses and replays_in_a_row(stored.visits) >= options.max_reuses:
        return None
    if keyed_generator(seed, step, question_id, "fresh").random() < options.fresh_share:
        return None
    names = [options.rule]
    if last is not None and last.n_rewarded == last.n_samples and options.after_all_right:
        names.insert(0, options.after_all_right)
    if last is not None and last.n_rewarded == 0 and options.after_all_wrong:
        names.insert(0, options.after_all_wrong)
    rules = (cut_rule(name) for name in names)
    return next((rule for rule in rules if (stored.paths if rule.each else rule.slot in stored.paths)), None)


def choose_prefixes(
    rule: CutRule | None,
    stored: Stored,
    n_samples: int,
    options: CutOptions,
    seed: int,
    step: int,
    question_id: str,
    longest: int | None = None,
) -> tuple[Prefix, ...]:
    """One prefix for each of ``n_samples`` samples; of a rule that cuts one path once they are equal.

    No prefix is longer than ``longest`` tokens, so that a path that filled its length limit leaves room for a response.
    Raises ValueError when the cut rule breaks its contract (the number of cuts, or a cut outside the path).
    """
    if rule is None:
        return (Prefix(),) * n_samples
    paths = paths_to_cut(rule, stored, n_samples)
    now = tuple(stored.log_probs[path.slot] for path in paths) if rule.scores else ()
    generator = keyed_generator(seed, step, question_id, "cut")
    cuts = rule.choose(CutContext(paths, n_samples, options, generator, stored.visits, now))
    if len(cuts) != n_samples:
        raise ValueError(f"cut rule of question {question_id}: {len(cuts)} cuts for {n_samples} samples")
    scored: tuple[tuple[float, ...] | None, ...] = now or tuple(path.log_probs for path in paths)
    heads = tuple(_head(path, cut, longest, logs) for path, cut, logs in zip(paths, cuts, scored, strict=True))
    if rule.rejected is None:
        return heads
    return tuple(  # after a prefix of ``longest`` tokens the next one is drawn anew in any case
        replace(head, rejected=rule.rejected(path, len(head), logs, options)) if len(head) != longest else head
        for head, path, cut, logs in zip(heads, paths, cuts, now, strict=True)
    )


def paths_to_cut(rule: CutRule, stored: Stored, n_samples: int) -> tuple[Path, ...]:
    """The path that each sample continues: the one in the rule's slot, or one each, in turn where there are fewer."""
    if not rule.each:
        return (stored.paths[rule.slot],) * n_samples
    slots = sorted(stored.paths)
    return tuple(stored.paths[slots[i % len(slots)]] for i in range(n_samples))


def replays_in_a_row(visits: tuple[Visit, ...]) -> int:
    """Newest visits since the last group that started from the bare question, which had neither prefix nor cut."""
    count = 0
    for visit in reversed(visits):
        if visit.cut == 0 and visit.prefix_length == 0:
            break
        count += 1
    return count


def _head(path: Path, cut: int, longest: int | None, log_probs: tuple[float, ...] | None) -> Prefix:
    """All but the last ``cut`` tokens of the path's own ids, or its first ``longest``; a cut of 0 keeps it whole."""
    if not 0 <= cut <= len(path):
        raise ValueError(f"a cut of {cut} tokens does not fit a path of {len(path)}")
    if longest is not None:
        cut = max(cut, len(path) - longest)
    kept = len(path) - cut
    if kept == 0:
        log_probs = ()  # nothing is missing, even where the path has none
    return Prefix(path.token_ids[:kept], None if log_probs is None else log_probs[:kept], cut, path)
