"""Laws of the phase clock."""

import time

import pytest

from openrlhf_rpo.run.phases import PhaseClock


def test_phases_and_what_is_left_add_up_to_the_step():
    clock = PhaseClock()
    clock.start_step(("cache", "reward"))
    for _ in range(2):
        with clock("rollout"):
            time.sleep(0.01)
    time.sleep(0.01)
    metrics = clock.metrics()
    assert set(metrics) == {f"timing/{k}" for k in ("cache", "reward", "rollout", "own", "step_total")}
    assert metrics["timing/rollout"] >= 0.02 and metrics["timing/own"] >= 0.01 and metrics["timing/reward"] == 0
    assert sum(v for k, v in metrics.items() if k != "timing/step_total") == pytest.approx(metrics["timing/step_total"])


def test_a_phase_that_fails_is_counted():
    clock = PhaseClock()
    with pytest.raises(RuntimeError), clock("train"):
        time.sleep(0.01)
        raise RuntimeError
    assert clock.seconds["train"] >= 0.01


def test_a_step_begins_with_what_was_carried_over():
    clock = PhaseClock()
    for phase in ("rollout", "cache"):
        with clock(phase):
            time.sleep(0.001)
    carried = clock.seconds["cache"]
    clock.start_step(("reward",), carried=("cache",))
    assert clock.seconds == {"reward": 0.0, "cache": carried}
