"""A step's metrics of rollout and cache, by the names in ``run.catalogue`` (docs/metrics.md)."""

import itertools
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from openrlhf_rpo.algo.variance import has_signal, outcome
from openrlhf_rpo.types import UNKNOWN, CacheDecision, Group, Sample

GENERATED_TOTAL = "rpo/tokens_generated_total"
REUSED_TOTAL = "rpo/tokens_reused_total"


def rollout_metrics(
    groups: Sequence[Group], step: int, totals: dict[str, float], waiting: Sequence[Group] = ()
) -> dict[str, float]:
    """Means over all samples of the step, filtered groups included; lengths and cuts in tokens, ages in steps.

    ``totals`` are the cumulative counts before this step (``GENERATED_TOTAL``, ``REUSED_TOTAL``). Of ``waiting`` groups only
    the tokens count.
    """
    samples = [sample for group in groups for sample in group.samples]
    generated = sum(group.n_tokens - group.n_before for group in (*groups, *waiting))
    reused = sum(len(s.prefix) for s in samples)
    replayed = [s.prefix for s in samples if s.prefix.path is not None]
    scores = [[s.score for s in g.samples if s.score is not None] for g in groups]
    kinds = Counter(outcome(group) for group in scores)
    return {
        "rpo/score": fmean(itertools.chain.from_iterable(scores)),
        "rpo/generated_tokens": generated / len(samples),
        "rpo/prefix_tokens": reused / len(samples),
        "rpo/path_length": fmean(s.path_length for s in samples),
        "rpo/truncated_rate": fmean(s.truncated for s in samples),
        "rpo/groups_without_variance": fmean(not has_signal(group) for group in scores),
        "rpo/groups_all_right": kinds["all_right"] / len(groups),
        "rpo/groups_all_wrong": kinds["all_wrong"] / len(groups),
        "rpo/groups_waiting": float(len(waiting)),
        "rpo/groups_from_bare_question": fmean(g.samples[0].prefix.path is None for g in groups),
        "rpo/cut": fmean(p.cut for p in replayed) if replayed else 0.0,
        **_ages(samples, step),
        "rpo/cache_age": fmean(step - p.path.step for p in replayed if p.path) if replayed else 0.0,
        GENERATED_TOTAL: totals.get(GENERATED_TOTAL, 0.0) + generated,
        REUSED_TOTAL: totals.get(REUSED_TOTAL, 0.0) + reused,
        **_reward_logs(samples),
    }


def _ages(samples: Sequence[Sample], step: int) -> dict[str, float]:
    """How many steps the policy that sampled a response token is behind the one that trains on it: mean and largest."""
    parts = [part for sample in samples for part in sample.parts if part.version != UNKNOWN]
    total = sum(part.n_tokens for part in parts)
    ages = [(step - 1 - part.version) * part.n_tokens for part in parts]
    oldest = max((step - 1 - part.version for part in parts), default=0)
    return {"rpo/policy_age": sum(ages) / max(1, total), "rpo/policy_age_max": float(oldest)}


def _reward_logs(samples: Sequence[Sample]) -> dict[str, float]:
    """Each number in the reward function's ``extra_logs``, averaged over the samples that have it."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.reward_logs.items():
            values.setdefault(f"rpo/reward/{name}", []).append(value)
    return {name: fmean(found) for name, found in sorted(values.items())}


def cache_metrics(decisions: Sequence[CacheDecision]) -> dict[str, float]:
    """The share of questions whose own path was replaced, and the share of each outcome."""
    outcomes = Counter(d.visit.outcome for d in decisions)
    shares = {f"rpo/cache/{name}": n / len(decisions) for name, n in sorted(outcomes.items())}
    return {"rpo/cache/replaced": fmean(d.path is not None for d in decisions), **shares}


def console_line(step: int, max_steps: int, metrics: dict[str, float]) -> str:
    """One line for people: score, tokens generated and reused, times."""
    m = metrics
    phases = ", ".join(
        f"{name.removeprefix('timing/')} {seconds:.1f}"
        for name, seconds in m.items()
        if name.startswith("timing/") and name != "timing/step_total" and seconds >= 0.05
    )
    return (
        f"step {step}/{max_steps}  score {m['rpo/score']:.3f}  tokens/sample {m['rpo/generated_tokens']:.0f} new "
        f"+ {m['rpo/prefix_tokens']:.0f} reused  no variance {m['rpo/groups_without_variance']:.0%}  "
        f"truncated {m['rpo/truncated_rate']:.0%}  replaced {m.get('rpo/cache/replaced', 0):.0%}  "
        f"total {m[GENERATED_TOTAL]:,.0f} tokens  {m['timing/step_total']:.1f} s ({phases})"
    )
