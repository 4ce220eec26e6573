"""Turn a method's choice for one question into cache rows.

A chosen path replaces the one in its slot: new path = prefix + response, and its parent is the path that was cut. Its parts
are those of both; where one has none, its tokens are of unknown origin. Other slots keep their paths.
"""

from statistics import fmean

from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.algo.methods.method import Choice, Method, Scored
from openrlhf_rpo.algo.parts import head, joined
from openrlhf_rpo.types import OWN, CacheDecision, Group, Path, Sample, Visit


def decide(method: Method, group: Group, has_path: bool, step: int, seed: int) -> CacheDecision:
    """What to store for the group's question; ``has_path``: slot 0 of the question is filled.

    Raises ValueError if a sample has no score or no shaped reward, or if the method breaks its contract.
    """
    samples = group.samples
    scores, rewards = zip(*map(score_and_reward, samples), strict=True)
    scored = Scored(
        scores=scores,
        rewards=rewards,
        path_lengths=tuple(sample.path_length for sample in samples),
        has_path=has_path,
        generator=keyed_generator(seed, step, group.question.question_id, "update"),
    )
    choice = method.store(scored)
    if not all(slot >= 0 and 0 <= i < len(samples) for slot, i in choice.samples.items()):
        raise ValueError(f"method {method.name} stores {dict(choice.samples)} of {len(samples)} samples")
    paths = {int(slot): _new_path(group, i, step, int(slot)) for slot, i in choice.samples.items()}
    others = tuple(path for slot, path in paths.items() if slot != OWN)
    return CacheDecision(paths.get(OWN), _visit(group, step, choice, len(scored.right)), others)


def score_and_reward(sample: Sample) -> tuple[float, float]:
    """Score and shaped reward. Raises ValueError if one is missing."""
    if sample.score is None or sample.shaped_reward is None:
        raise ValueError("a sample has no score or no shaped reward yet")
    return sample.score, sample.shaped_reward


def _new_path(group: Group, chosen: int, step: int, slot: int) -> Path:
    sample = group.samples[chosen]
    prefix = sample.prefix
    score, reward = score_and_reward(sample)
    inherited = head(prefix.path.parts if prefix.path is not None else (), len(prefix))
    return Path(
        question_id=group.question.question_id,
        token_ids=prefix.token_ids + sample.response_ids,
        log_probs=prefix.log_probs + sample.response_log_probs if prefix.log_probs is not None else None,
        finish_reason=sample.finish_reason,
        score=score,
        reward=reward,
        prefix_length=len(prefix),
        step=step,
        parent_id=prefix.path.path_id if prefix.path is not None and len(prefix) > 0 else None,
        slot=slot,
        parts=joined(inherited, head(sample.parts, len(sample.response_ids))),
    )


def _visit(group: Group, step: int, choice: Choice, n_rewarded: int) -> Visit:
    """Cut and prefix length are means over the samples, because these share one success rate."""
    prefixes = [sample.prefix for sample in group.samples]
    path = prefixes[0].path
    return Visit(
        question_id=group.question.question_id,
        step=step,
        cut=round(fmean(prefix.cut for prefix in prefixes)),
        prefix_length=round(fmean(map(len, prefixes))),
        shortest_path=min(sample.path_length for sample in group.samples),
        n_samples=len(group.samples),
        n_rewarded=n_rewarded,
        outcome=str(choice.outcome),  # NumPy's types would be read back as Python's, with another checksum
        start_bare=bool(choice.start_bare),
        slot=OWN if path is None else path.slot,
        n_tokens=group.n_tokens,
        asked=group.asked,
    )
