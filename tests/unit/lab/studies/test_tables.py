"""The figures of each study from runs that are made by hand."""

import math
from types import SimpleNamespace

import pytest
from unit.lab.studies.made import made_run, made_step

from lab import training
from lab.runs import StudyError, Variant
from lab.studies import large_to_small, stability, sweep, tokens, training_time

FULL = training.PLAIN.name


def test_tokens_are_set_against_the_full_path():
    capped = made_run(
        made_step(1, 20.0, truncated=0.5, bare=0.25), made_step(2, 40.0, bare=0.0), initial_tokens=2000, accuracy=(0.4, 0.5)
    )
    row = tokens.table({"L 50": [capped], FULL: [made_run(made_step(1, 300.0))]})["L 50"]
    assert row["tokens"] == {"mean": 30.0, "sd": 0.0, "runs": 1}
    assert row["share"] == pytest.approx(0.1)
    assert row["truncated"]["mean"] == 0.25 and row["bare"]["mean"] == 0.125
    assert row["initial_tokens"]["mean"] == 100.0
    assert row["accuracy"]["mean"] == 0.5


def test_without_the_full_path_there_is_no_share():
    assert tokens.table({"L 50": [made_run(made_step(1, 20.0))]})["L 50"]["share"] is None


def test_every_length_is_run_with_every_budget_and_the_full_path_once():
    made = tokens.variants(["fixed:3", "ratio:1"], ["factor:1", "remaining"])
    assert [v.name for v in made] == [
        *("fixed:3, factor:1", "fixed:3, remaining", "ratio:1, factor:1", "ratio:1, remaining"),
        FULL,
    ]
    assert made[1].options == {"rpo.cut.max": "fixed:3", "rpo.budget.rule": "remaining"}


def test_seeds_are_summed_up_as_mean_and_standard_deviation():
    assert training.summary([1.0, 3.0]) == {"mean": 2.0, "sd": pytest.approx(math.sqrt(2)), "runs": 2}
    assert training.summary([1.0])["sd"] == 0.0


def hours(n: float, **others):
    return made_run(made_step(1, 50.0, seconds={"rollout": n * 1800, "train": n * 1800, "step_total": n * 3600}), **others)


def test_cost_is_hours_times_devices_times_price():
    row = training_time.table({"RPO": [hours(2, wall_seconds=9000.0), hours(4, wall_seconds=16000.0)]}, 8, 1.5)["RPO"]
    assert row["hours"]["mean"] == 3.0
    assert (row["device_hours"], row["cost"]) == (24.0, 36.0)
    assert row["phases"]["rollout"] == row["phases"]["train"] == 5400.0 and row["phases"]["cache"] == 0.0
    assert row["outside"] == pytest.approx((1800 + 1600) / 2)


def test_an_interrupted_run_does_not_say_what_passed_outside_its_steps():
    row = training_time.table({"RPO": [hours(1), hours(1, wall_seconds=None)]}, 1, None)["RPO"]
    assert row["outside"] is None and row["cost"] is None


def test_a_group_size_changes_the_batch_with_it():
    options = SimpleNamespace(rollout=SimpleNamespace(batch_size=96))
    made = training_time.variants([6, 8], options)
    assert [v.name for v in made] == ["RPO, G 6", f"{FULL}, G 6", "RPO, G 8", f"{FULL}, G 8"]
    assert made[3].options == {"rollout.n_samples_per_prompt": 8, "train.batch_size": 768, "rpo.enable": "false"}
    assert training_time.variants(None, options) == [Variant("RPO"), training.PLAIN]


def test_variances_are_over_steps_and_the_claim_is_their_ratio():
    ours = made_run(*(made_step(i, g, prefix=100.0, grad_norm=n, no_variance=0.5) for i, g, n in ((1, 10, 1), (2, 14, 5))))
    full = made_run(*(made_step(i, g, grad_norm=n) for i, g, n in ((1, 100, 2), (2, 120, 4))))
    rows = stability.table({"RPO": [ours], FULL: [full]}, skip=0)
    assert rows["RPO"]["length"]["mean"]["mean"] == 112.0
    assert rows["RPO"]["length"]["variance"]["mean"] == 8.0  # (2^2 + 2^2) / 1
    assert rows[FULL]["length"]["variance"]["mean"] == 200.0
    assert rows["RPO"]["no_variance"]["mean"] == 0.5 and rows[FULL]["no_variance"] is None
    assert stability.gradient_claim({"RPO": [ours], FULL: [full]}, skip=0)["ratio"] == 8.0 / 2.0


@pytest.mark.parametrize(("scale", "verdict"), [(0.1, "holds"), (1.0, "undecided"), (10.0, "does not hold")])
def test_the_claim_is_decided_only_where_the_interval_is_on_one_side_of_1(scale, verdict):
    norms = [1.0 + (7 * i % 10) for i in range(40)]
    ours, full = (made_run(*(made_step(i, 10.0, grad_norm=s * n) for i, n in enumerate(norms, 1))) for s in (scale, 1.0))
    assert stability.gradient_claim({"RPO": [ours], FULL: [full]}, skip=0)["verdict"] == verdict


def test_the_claim_needs_both_runs_and_a_gradient_that_changes():
    run = made_run(made_step(1, 10.0), made_step(2, 10.0))
    assert stability.gradient_claim({"RPO": [run]}, skip=0) is None
    with pytest.raises(StudyError, match="nothing was trained"):
        stability.gradient_claim({"RPO": [run], FULL: [run]}, skip=0)


def test_first_steps_can_be_left_out_but_not_all():
    run = made_run(made_step(1, 10.0), made_step(2, 30.0), made_step(3, 50.0))
    assert stability.table({"RPO": [run]}, skip=1)["RPO"]["length"]["mean"]["mean"] == 40.0
    with pytest.raises(StudyError, match="lower --skip"):
        stability.table({"RPO": [run]}, skip=2)


def test_small_steps_are_questions_times_samples():
    ours, full = stability.variants(3, samples=6)
    assert ours.options == {"rollout.batch_size": 3, "train.batch_size": 18}
    assert full.options == {**ours.options, "rpo.enable": "false"}
    assert stability.variants(None, samples=6)[0].options == {}


def test_a_trial_a_combination_and_epsilon_off_is_one_too():
    made = sweep.variants({"L": ["ratio:1"], "epsilon": ["0.1", "off"]})
    assert [v.name for v in made] == ["L ratio:1, epsilon 0.1", "L ratio:1, epsilon off"]
    assert made[0].options == {"rpo.cut.max": "ratio:1", "rpo.update.epsilon": "0.1"}
    assert made[1].options == {"rpo.cut.max": "ratio:1", "rpo.update.epsilon": "off"}


def trials(**accuracies: float):
    return {name.replace("_", " "): {"accuracy": {"mean": a}} for name, a in accuracies.items()}


def test_one_option_is_a_map_of_one_row():
    [(title, _, rows, column, columns, cells)] = sweep.heat_maps({"alpha": ["0", "1"]}, trials(alpha_0=0.2, alpha_1=0.4))
    assert (title, rows, column, columns, cells) == ("", ("",), "alpha", ["0", "1"], [[0.2, 0.4]])


def test_two_options_span_a_map_and_a_third_has_a_map_for_each_value():
    found = {
        f"L {a}, alpha {b}, epsilon {c}": {"accuracy": {"mean": float(a + b + c)}} for a in "12" for b in "34" for c in "56"
    }
    maps = sweep.heat_maps({"L": ["1", "2"], "alpha": ["3", "4"], "epsilon": ["5", "6"]}, found)
    assert [title for title, *_ in maps] == ["L 1", "L 2"]
    assert maps[1][-1] == [[235.0, 236.0], [245.0, 246.0]]


def test_a_trial_that_is_not_finished_leaves_a_gap():
    [(*_, cells)] = sweep.heat_maps({"alpha": ["0", "1"]}, trials(alpha_1=0.4))
    assert math.isnan(cells[0][0]) and cells[0][1] == 0.4


def test_the_stronger_model_pays_for_the_cache_it_gives():
    stronger = made_run(made_step(1, 10.0), initial_tokens=5000, initial_paths=20, initial_score=0.9)
    weaker = made_run(made_step(1, 10.0), initial_paths=18, initial_score=1.0, accuracy=(0.1, 0.4))
    rows = large_to_small.table({"stronger": [stronger], "stronger's cache": [weaker]})
    assert rows["stronger"]["initial_tokens"] == 5000 and rows["stronger's cache"]["initial_tokens"] == 0
    assert (rows["stronger's cache"]["first"]["mean"], rows["stronger's cache"]["last"]["mean"]) == (0.1, 0.4)


def test_runs_that_were_not_all_evaluated_have_no_accuracy():
    evaluated, other = made_run(accuracy=(0.2, 0.4)), made_run(accuracy=())
    assert training.accuracy([evaluated, evaluated])["mean"] == 0.4
    assert training.accuracy([evaluated, other]) is None
    assert training.cell(None, ".3f") == "" and training.cell({"mean": 0.25}, ".3f") == "0.250"


def test_single_runs_and_a_busy_host_are_remarked_on():
    assert training.remarks({"a": [made_run(), made_run()]}) == []
    one, busy = training.remarks({"a": [made_run(neighbours=1.5)]})
    assert "one run per setting" in one and "seconds cannot be compared: other work kept up to 1.5 of 4 cores busy" in busy
    [unknown] = training.remarks({"a": [made_run(wall_seconds=None), made_run()]})
    assert "seconds cannot be compared: a run was interrupted" in unknown


def test_evaluations_at_different_steps_are_remarked_on():
    [remark] = training.remarks({"a": [made_run(), made_run()], "b": [made_run(accuracy=(0.1, 0.2, 0.3))] * 2})
    assert "at different steps: 1, 2" in remark
