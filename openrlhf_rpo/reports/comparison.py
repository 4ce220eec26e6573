"""Which figures of several runs can be compared, and held-out accuracy at equal cost."""

import json
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from openrlhf_rpo.reports.run import STEP_SECONDS, Run
from openrlhf_rpo.run.metrics import GENERATED_TOTAL

Curve = list[tuple[float, float]]

_WORDS = {
    "data": "training questions",
    "tokenizer": "tokenizer",
    "template": "prompt template",
    "base model": "base model",
    "weights": "weights of the base model",
}
_CONSEQUENCE = {
    "data": "figures by step are of different questions, and each lineage belongs to one run only; accuracies can be "
    "compared if the held-out questions were the same, which is not recorded",
    "tokenizer": "token counts have different units: compare accuracies and seconds, but not tokens",
    "template": "the model saw the same questions in different words",
    "base model": "they start from different weights: compare the gain, not the final accuracy",
    "weights": "compare the gain, not the final accuracy",
}


def differences(runs: Sequence[Run]) -> list[str]:
    """A sentence for each difference between the runs that limits a comparison."""
    known = [run for run in runs if run.fingerprints]
    found = {name: {run.name: run.fingerprints[name] for run in known if name in run.fingerprints} for name in _WORDS}
    differing = [name for name, values in found.items() if len(set(values.values())) > 1]
    if "base model" in differing and "weights" in differing:
        differing.remove("weights")  # another model has other weights
    notes = []
    for name in differing:
        listed = ", ".join(f"{run} {value}" for run, value in found[name].items())
        notes.append(f"The runs do not have the same {_WORDS[name]} (fingerprints: {listed}): {_CONSEQUENCE[name]}.")
    unknown = [run.name for run in runs if not run.fingerprints]
    if unknown and len(runs) > 1:
        notes.append(
            f"{', '.join(unknown)}: data, tokenizer and base model are not recorded. Check for yourself that the "
            "comparison is fair."
        )
    return notes


def changed_options(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The options in which runs with stored options differ: name, and each run's value (None: not stored)."""
    known = [run.options for run in runs if run.options]
    rows = []
    for name in sorted({name for options in known for name in options}):
        values = [options.get(name) for options in known]
        if len(set(values)) > 1:
            rows.append({"name": name, "values": [None if v is None else _plain(v) for v in values]})
    return rows


def accuracy_by(run: Run, cost: str) -> Curve:
    """(cost so far, held-out accuracy) at each evaluation whose cost is known.

    ``cost``: "tokens" generated, including the initial cache, or "seconds" of training steps, without evaluations.
    """
    steps = [0, *(record.step for record in run.records)]
    seconds = dict(zip(steps, accumulate([0.0, *run.series(STEP_SECONDS)]), strict=True))
    points = []
    for step, accuracy in run.accuracy():
        spent = run.at_step(GENERATED_TOTAL, step) if cost == "tokens" else seconds.get(step, math.nan)
        if math.isfinite(spent):
            points.append((spent, accuracy))
    return points


def at(curve: Curve, x: float) -> float | None:
    """Accuracy at cost ``x`` by linear interpolation; None outside the curve."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None


def cost_of(curve: Curve, accuracy: float) -> float | None:
    """The cost at which the curve first reaches ``accuracy``, by linear interpolation.

    None if it never does, or if it starts there: the cost is then unknown.
    """
    if curve and curve[0][1] >= accuracy:
        return None
    for (x0, y0), (x1, y1) in pairwise(curve):
        if y0 < accuracy <= y1:
            return x0 + (x1 - x0) * (accuracy - y0) / (y1 - y0)
    return None


def _plain(value: str) -> str:
    loaded = json.loads(value)
    return loaded if isinstance(loaded, str) else value
