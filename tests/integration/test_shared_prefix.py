"""Sharing prefixes trains the same model: the real command with it and without, from the same seed.

The run without it has OpenRLHF's own dynamic micro-batches of packed rows, which torch's attention takes apart without
flash-attn: several micro-batches make one gradient, that of fixed ones.
"""

import pytest

from .conftest import TrainingRun, run_training

pytestmark = pytest.mark.release
SAME = ["rpo/score", "rpo/generated_tokens", "rpo/prefix_tokens", "rpo/path_length", "rpo/cut", "rpo/cache/replaced"]


def metrics(run: TrainingRun) -> list[dict[str, float]]:
    assert run.status == 0, run.output[-3000:]
    with run.cache() as cache:
        return [record.metrics for record in cache.records()]


def said(run: TrainingRun) -> list[str]:
    return [line for line in run.output.splitlines() if "Shared prefix, " in line]


@pytest.fixture(scope="module")
def whole_rows(tmp_path_factory: pytest.TempPathFactory, same_options: dict[str, object]) -> TrainingRun:
    """The finished run's command, with sharing off and micro-batches of at most 900 tokens."""
    changes = {"rpo__shared_prefix": "off", "train__dynamic_batch_enable": True, "train__max_tokens_per_gpu": 900}
    return run_training(tmp_path_factory.mktemp("whole_rows"), 3, **same_options, **changes)


def test_sharing_on_and_off_have_the_same_figures_step_by_step(whole_rows, finished_run) -> None:
    on, off = metrics(finished_run), metrics(whole_rows)
    assert len(on) == len(off) == 6
    for step, (a, b) in enumerate(zip(on, off, strict=True), 1):
        for name in SAME:
            assert a[name] == pytest.approx(b[name], rel=1e-6), f"{name} at step {step}"
        assert a["actor_grad_norm"] == pytest.approx(b["actor_grad_norm"], rel=1e-4), f"gradient at step {step}"
        assert a["rpo/trained_share"] == b["rpo/trained_share"]
        if a["rpo/trained_share"] == 1:  # else micro-batches without a sample that teaches add one each, here other ones
            assert a["rpo/rollout_log_prob_gap"] == pytest.approx(b["rpo/rollout_log_prob_gap"], rel=0.05)
    assert on[0]["rpo/trained_share"] == 1


def test_the_log_says_in_one_line_what_is_shared(whole_rows, finished_run) -> None:
    [line] = said(finished_run)
    assert "policy: on: " in line
    assert said(whole_rows) == []
