"""What one step does to one question's stored paths (paper section 3.3, spec section 6).

1. The update rule says which sample's path goes to which slot. Candidates for the question's own path are the rewarded
   samples (``admit rewarded``) or all of them (``any``, the paper's equation).
2. A path that was chosen replaces the one in its slot: new path = prefix + response, its parent is the one that was cut.
3. Without one the own path is kept. Under ``on_all_wrong reset`` the next group moreover starts from the bare
   question, once, because a mistake inside a prefix otherwise never heals.

Degenerate cases: with updates off everything is kept, C(0). Under ``admit any`` there is always a candidate, so
nothing is ever reset. A question without a cached path has nothing to reset.
"""

from statistics import fmean

from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.algo.update import UpdateContext, update_rule
from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.config import UpdateOptions
from openrlhf_rpo.types import OWN, CacheDecision, Group, Path, Sample, Visit


def decide(group: Group, has_path: bool, options: UpdateOptions, step: int, seed: int) -> CacheDecision:
    """What to store for the group's question; ``has_path``: one of its own is in the cache.

    Raises ValueError when a sample has no score or no shaped reward, or the rule breaks its contract.
    """
    samples = group.samples
    context = UpdateContext(
        scores=tuple(score_of(sample) for sample in samples),
        rewards=tuple(_reward_of(sample) for sample in samples),
        path_lengths=tuple(sample.path_length for sample in samples),
        options=options,
        generator=keyed_generator(seed, step, group.question.question_id, "update"),
    )
    if not options.enable:
        return CacheDecision(None, _visit(group, step, "update_off"))
    choice = update_rule(options.rule)(context)
    if not all(slot >= 0 and 0 <= i < len(samples) for slot, i in choice.samples.items()):
        raise ValueError(f"update rule {options.rule}: {dict(choice.samples)} for {len(samples)} samples")
    others = tuple(_new_path(group, i, step, slot) for slot, i in choice.samples.items() if slot != OWN)
    if OWN in choice.samples:
        own = _new_path(group, choice.samples[OWN], step, OWN)
        return CacheDecision(own, _visit(group, step, choice.outcome), others)
    reset = options.on_all_wrong == "reset" and has_path
    return CacheDecision(None, _visit(group, step, "reset" if reset else choice.outcome, start_bare=reset), others)


def score_of(sample: Sample) -> float:
    """The score of a sample that must have one. Raises ValueError."""
    if sample.score is None:
        raise ValueError("a sample has no score yet")
    return sample.score


def _reward_of(sample: Sample) -> float:
    if sample.shaped_reward is None:
        raise ValueError("a sample has no shaped reward yet")
    return sample.shaped_reward


def _new_path(group: Group, chosen: int, step: int, slot: int) -> Path:
    sample = group.samples[chosen]
    prefix = sample.prefix
    return Path(
        question_id=group.question.question_id,
        token_ids=prefix.token_ids + sample.response_ids,
        log_probs=prefix.log_probs + sample.response_log_probs if prefix.log_probs is not None else None,
        finish_reason=sample.finish_reason,
        score=score_of(sample),
        reward=_reward_of(sample),
        prefix_length=len(prefix),
        step=step,
        parent_id=prefix.path.path_id if prefix.path is not None and len(prefix) > 0 else None,
        slot=slot,
    )


def _visit(group: Group, step: int, outcome: str, start_bare: bool = False) -> Visit:
    """Cut and prefix length are the samples' means: with one cut a group everyone's, else what their success rate is of."""
    prefixes = [sample.prefix for sample in group.samples]
    path = prefixes[0].path
    return Visit(
        question_id=group.question.question_id,
        step=step,
        cut=round(fmean(prefix.cut for prefix in prefixes)),
        prefix_length=round(fmean(map(len, prefixes))),
        shortest_path=min(sample.path_length for sample in group.samples),
        n_samples=len(group.samples),
        n_rewarded=sum(rewarded(score_of(sample)) for sample in group.samples),
        outcome=outcome,
        start_bare=start_bare,
        slot=OWN if path is None else path.slot,
    )
