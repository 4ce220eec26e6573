"""Runs made by hand for the tests of the studies and benchmarks."""

from lab.figures import RunFigures, Step


def made_step(step: int, generated: float, **others) -> Step:
    """One of ten samples, unless ``tokens`` says otherwise."""
    values = {
        "tokens": round(10 * generated),
        "prefix": 0.0,
        "truncated": 0.0,
        "score": 0.5,
        "grad_norm": 1.0,
        "no_variance": None,
        "bare": 1.0,
        "seconds": {"rollout": 2.0, "train": 1.0, "step_total": 3.0},
    }
    return Step(step=step, generated=generated, **{**values, **others})


def made_run(*steps: Step, accuracy: tuple[float, ...] = (0.5, 0.6), **others) -> RunFigures:
    """Evaluated from step 0 on, a step apart, on an idle host of four cores."""
    values = {
        "evaluations": tuple((i, a, 100.0) for i, a in enumerate(accuracy)),
        "initial_tokens": 0,
        "initial_paths": 0,
        "initial_score": None,
        "eval_seconds": 1.0,
        "wall_seconds": 30.0,
        "neighbours": 0.1,
        "cores": 4,
    }
    return RunFigures(steps=steps, **{**values, **others})


def made_figures(seed: int, *curve: tuple[int, float, float], **others) -> dict:
    """What ``frontier.figures_of`` makes of a run, from its (tokens, seconds, accuracy) at each evaluation."""
    tokens, seconds, accuracy = curve[-1]
    return {
        "seed": seed,
        "steps": 16,
        "curve": list(curve),
        "generated_tokens": tokens,
        "kept_tokens": tokens // 4,
        "seconds": seconds,
        "quiet": True,
        "overlap": {},
        "tokens_per_sample": 50.0,
        "truncated": 0.0,
        "no_variance": None,
        "phases": {"rollout": 1.0},
        "end": {"accuracy": accuracy, "pass_at_k": {}, "tokens": 40.0},
        **others,
    }
