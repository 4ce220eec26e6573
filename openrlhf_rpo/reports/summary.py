"""A run in words and figures: what replay saved, what it cost, and how accuracy changed.

Every sentence is computed from recorded figures.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, TypeAlias

from openrlhf_rpo.reports.comparison import accuracy_by, at, changed_options, cost_of, differences
from openrlhf_rpo.reports.run import STEP_SECONDS, Run, state_of
from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL

_Points: TypeAlias = list[tuple[float, float]]
"""(figure, weight) by step."""
_MISLEADS = 0.02  # a smaller drop in accuracy is noise in most evaluations


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """``runs``: each run's tiles (label, value, detail), sentences and notes; ``against``: runs with replay compared with
    runs without."""
    return {
        "runs": [
            {"name": run.name, "tiles": _tiles(run), "sentences": _sentences(run), "notes": state_of(run)} for run in runs
        ],
        "notes": differences(runs),
        "against": _against(runs),
        "options": {"runs": [run.name for run in runs if run.options], "rows": changed_options(runs)},
    }


# ── One run ──


def _tiles(run: Run) -> list[dict[str, str]]:
    tiles = []
    accuracy = run.accuracy()
    if accuracy:
        best = max(value for _, value in accuracy)
        tiles.append(("held-out accuracy", f"{accuracy[-1][1]:.3f}", f"first {accuracy[0][1]:.3f}, best {best:.3f}"))
    steps = f"of {run.planned_steps:,}" if run.planned_steps else ""
    tiles.append(("steps", f"{run.latest_step:,}", steps))
    generated, reused = _totals(run)
    if generated:
        tiles.append(
            ("tokens generated", _count(generated), f"{_mean(_by_sample(run, 'rpo/generated_tokens')):.0f} per sample")
        )
    if reused:
        share = reused / (generated + reused)
        tiles.append(("tokens reused", _count(reused), f"{share:.0%} of all path tokens"))
    if seconds := _finite(run, STEP_SECONDS):
        tiles.append(("training time", _duration(sum(seconds)), f"{fmean(seconds):.1f} s per step"))
    if run.questions:
        tiles.append(("questions", f"{run.questions:,}", f"{run.cached:,} with a cached path"))
    return [dict(zip(("label", "value", "detail"), tile, strict=True)) for tile in tiles]


def _sentences(run: Run) -> list[str]:
    if not run.records:
        return []
    found = (_saved(run), _time(run), _overlap(run), _signal(run), _lengths(run), _learned(run), _misled(run))
    return [sentence for sentence in found if sentence is not None]


def _saved(run: Run) -> str | None:
    if run.initial_tokens is None or not run.replays:
        return None
    generated, reused = _totals(run)
    whole = generated - run.initial_tokens + reused  # without reuse there is no initial cache
    if not generated or whole <= 0:
        return None
    fewer = 1 - generated / whole
    text = (
        f"Saved: {_count(reused)} tokens were taken from cached paths instead of being generated. Whole paths of the same "
        f"lengths would have been {_count(whole)} tokens. {_count(generated)} were generated, "
        f"{abs(fewer):.0%} {'fewer' if fewer >= 0 else 'more'}."
    )
    if run.initial_tokens:
        text += f" Of these the initial cache took {_count(run.initial_tokens)}."
    return text


def _time(run: Run) -> str | None:
    total, rollout = _sum(run, STEP_SECONDS), _sum(run, "timing/rollout")
    if not total:
        return None
    names = ("verify", "train", "log_probs", "reward", "weight_sync", "cache")
    phases = {name: _sum(run, f"timing/{name}") for name in names}
    shares = "".join(f", {name.replace('_', ' ')} {s / total:.0%}" for name, s in phases.items() if s / total >= 0.01)
    return f"Time: {_duration(total)} of training steps: generation {rollout / total:.0%}{shares}."


def _overlap(run: Run) -> str | None:
    seconds = run.series(STEP_SECONDS)
    rollout, train = _weighted(run, "rpo/rollout_busy", seconds), _weighted(run, "rpo/train_busy", seconds)
    if not rollout or not train:
        return None
    bounded = _finite(run, "is_filter_ratio")  # of the samples trained on, as many in every step
    too_old = _sum(run, "rpo/groups_too_old")
    return (
        f"At the same time: the rollout side worked {_mean(rollout):.0%} of the steps' time and the training side "
        f"{_mean(train):.0%}. Answers were of policies {_mean(_by_sample(run, 'rpo/policy_age')):.1f} steps behind, at most "
        f"{max(_finite(run, 'rpo/policy_age_max')):.0f}"
        + (f"; the weight of {fmean(bounded):.1%} of their tokens was bounded" if bounded else "")
        + (f"; {too_old:.0f} groups were too old and only stored." if too_old else ".")
    )


def _signal(run: Run) -> str | None:
    values = _by_sample(run, "rpo/groups_without_variance")  # groups are of one size
    if not (values and run.compares):
        return None
    quarter = max(1, len(values) // 4)
    right, wrong = _mean(_by_sample(run, "rpo/groups_all_right")), _mean(_by_sample(run, "rpo/groups_all_wrong"))
    return (
        f"Cost: in {_mean(values):.0%} of the groups all samples had the same score and gave no signal "
        f"({_mean(values[:quarter]):.0%} in the first quarter of the run, {_mean(values[-quarter:]):.0%} in the last; all "
        f"right {right:.0%}, all wrong {wrong:.0%})."
    )


def _lengths(run: Run) -> str | None:
    path, truncated = _by_sample(run, "rpo/path_length"), _by_sample(run, "rpo/truncated_rate")
    if not path or not truncated:
        return None
    quarter = max(1, len(path) // 4)
    return (
        f"Paths went from {_mean(path[:quarter]):.0f} to {_mean(path[-quarter:]):.0f} tokens (first and last quarter); "
        f"{_mean(truncated):.1%} of the samples hit the length limit."
    )


def _learned(run: Run) -> str | None:
    accuracy = run.accuracy()
    if len(accuracy) < 2:
        return None
    step, best = max(accuracy, key=lambda point: point[1])
    where = "its best" if step == accuracy[-1][0] else f"the best was {best:.3f} at step {step}"
    return (
        f"Learned: accuracy from the bare question went from {accuracy[0][1]:.3f} (step {accuracy[0][0]}) to "
        f"{accuracy[-1][1]:.3f} (step {accuracy[-1][0]}), {where}."
    )


def _misled(run: Run) -> str | None:
    accuracy, score = run.accuracy(), _by_sample(run, "rpo/score")
    if not run.replays or len(accuracy) < 2 or len(score) < 4:
        return None
    best, last = max(value for _, value in accuracy), accuracy[-1][1]
    quarter = len(score) // 4
    if best - last < _MISLEADS or _mean(score[-quarter:]) <= _mean(score[:quarter]):
        return None
    return (
        f"Watch out: accuracy fell by {best - last:.3f} from its best while the training score rose to "
        f"{_mean(score[-quarter:]):.3f}. That score includes prefixes; choose a checkpoint by the evaluations."
    )


# ── Against runs without replay ──


def _against(runs: Sequence[Run]) -> list[str]:
    full = [run for run in runs if not run.replays]
    replayed = [run for run in runs if run.replays]
    if not full:
        if len(replayed) == 1 and replayed[0].records:
            return [
                "No run without replay (--rpo.method off) was given, so the savings above are in tokens, not in learning: "
                "add the --ckpt.path of one, or the --logger.tensorboard_dir of plain OpenRLHF, to compare accuracy at "
                "equal cost."
            ]
        return []
    return [sentence for run in replayed for other in full for sentence in _pair(run, other)]


def _pair(run: Run, full: Run) -> list[str]:
    found = []
    for cost, shown in (
        ("tokens", lambda x: f"{_count(x)} generated tokens"),
        ("seconds", lambda x: f"{_duration(x)} of steps"),
    ):
        ours, theirs = accuracy_by(run, cost), accuracy_by(full, cost)
        if len(ours) < 2 or len(theirs) < 2:
            continue
        common = min(ours[-1][0], theirs[-1][0])
        a, b = at(ours, common), at(theirs, common)
        if a is not None and b is not None:
            found.append(f"After {shown(common)}: {run.name} {a:.3f}, {full.name} {b:.3f} (interpolated accuracy).")
        goal = min(max(y for _, y in ours), max(y for _, y in theirs))
        x, y = cost_of(ours, goal), cost_of(theirs, goal)
        if x is not None and y is not None:
            less = f"{1 - x / y:.0%} fewer" if x < y else f"{x / y - 1:.0%} more"
            less = less.replace("fewer", "less") if cost == "seconds" else less
            found.append(f"To reach {goal:.3f}: {run.name} {shown(x)}, {full.name} {shown(y)} ({less}).")
        if cost == "seconds":
            found += [f"The initial cache of {r.name} is not in its time." for r in (run, full) if r.initial_tokens]
    best = {r.name: max((y for _, y in r.accuracy()), default=math.nan) for r in (run, full)}
    if all(math.isfinite(value) for value in best.values()):
        found.append("Best accuracy: " + ", ".join(f"{name} {value:.3f}" for name, value in best.items()) + ".")
    if not found:
        found.append(f"{run.name} and {full.name} have too few evaluations in common to be compared at equal cost.")
    return found


# ── Figures ──


def _totals(run: Run) -> tuple[float, float]:
    """Tokens generated and reused over the whole run."""
    if not run.records:
        return float(run.initial_tokens or 0), 0.0
    last = run.records[-1].metrics
    return last.get(GENERATED_TOTAL, 0.0), last.get(REUSED_TOTAL, 0.0)


def _finite(run: Run, name: str) -> list[float]:
    return [value for value in run.series(name) if math.isfinite(value)]


def _samples(run: Run) -> list[float]:
    """The samples of each step, those that dynamic sampling dropped included; not finite if unknown."""
    totals = [run.at_step(GENERATED_TOTAL, 0), *run.series(GENERATED_TOTAL)]
    each = run.series("rpo/generated_tokens")
    return [(b - a) / one if one else math.nan for (a, b), one in zip(pairwise(totals), each, strict=True)]


def _by_sample(run: Run, name: str) -> _Points:
    """A figure that is a mean over samples or groups, weighted by the step's samples."""
    return _weighted(run, name, _samples(run))


def _weighted(run: Run, name: str, weights: Sequence[float]) -> _Points:
    """The steps that have the figure; one of unknown weight counts as an average one."""
    known = [w for w in weights if 0 < w < math.inf]
    usual = sum(known) / len(known) if known else 1.0
    steps = zip(run.series(name), weights, strict=True)
    return [(value, w if 0 < w < math.inf else usual) for value, w in steps if math.isfinite(value)]


def _mean(points: _Points) -> float:
    return sum(value * w for value, w in points) / sum(w for _, w in points) if points else math.nan


def _sum(run: Run, name: str) -> float:
    return sum(_finite(run, name))


def _count(value: float) -> str:
    if value >= 10_000_000:
        return f"{value / 1e6:,.1f} million"
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
