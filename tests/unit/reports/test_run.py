"""What a report knows about a run, and what it says when something is missing."""

import math
from dataclasses import replace

import pytest
from torch.utils.tensorboard import SummaryWriter

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.reports.comparison import accuracy_by, at, changed_options, cost_of, differences
from openrlhf_rpo.reports.event_files import event_folder, read_event_files
from openrlhf_rpo.reports.page import document
from openrlhf_rpo.reports.run import STEP_SECONDS, Run, columns, evaluation_columns, read_run, state_of
from openrlhf_rpo.reports.summary import summarise
from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL
from openrlhf_rpo.types import StepRecord


def record(step, **metrics):
    return StepRecord(step, 0, step, {name.replace("__", "/"): float(value) for name, value in metrics.items()})


def build(name="a", kind="rpo", generated=(100, 200), accuracy=((0, 0.4), (1, 0.5), (2, 0.7)), **fields):
    """Two steps of 10 seconds."""
    records = [
        StepRecord(
            step,
            0,
            step,
            {GENERATED_TOTAL: float(total), REUSED_TOTAL: 50.0 * step, STEP_SECONDS: 10.0, "timing/rollout": 5.0},
        )
        for step, total in enumerate(generated, 1)
    ]
    evaluations = [(step, {"eval_default_pass1": value}) for step, value in accuracy]
    return Run(name, f"/runs/{name}", kind, records, evaluations, **fields)


# ── One run ──


def test_a_cache_is_read_with_everything_that_its_steps_recorded(run_folder):
    with PathCache.open_to_read(f"sqlite:///{run_folder}/rpo_cache.db") as cache:
        run = read_run(cache, "r", "here", 3)
    assert (run.latest_step, run.planned_steps, run.questions, run.cached) == (4, 6, 3, 2)
    assert run.series("reward") == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert run.accuracy() == [(0, 0.5), (2, 0.6), (4, 0.7)]
    assert [run.at_step(GENERATED_TOTAL, step) for step in (0, 1, 4)] == [0.0, 1000.0, 4000.0]
    assert columns(run, after=3) == {
        "steps": [4],
        "series": {n: [v] for n, v in columns(run, 3)["series"].items() for v in v},
    }
    assert evaluation_columns(run) == {"steps": [0, 2, 4], "series": {"eval_default_pass1": [0.5, 0.6, 0.7]}}


AGREE = {"rpo/groups_without_variance": 1.0, "rpo/groups_all_right": 0.5, "rpo/groups_all_wrong": 0.5}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, True),
        ({"rollout.n_samples_per_prompt": "4", "algo.advantage.estimator": '"rloo"'}, True),
        ({"rollout.n_samples_per_prompt": "1"}, False),
        ({"rollout.n_samples_per_prompt": "4", "rpo.advantage.baseline": '"zero"'}, False),
        ({"rollout.n_samples_per_prompt": "4", "algo.advantage.estimator": '"reinforce"'}, False),
        ({"rollout.n_samples_per_prompt": "4", "algo.advantage.estimator": '["forged"]'}, False),
    ],
)
def test_groups_that_agree_are_a_cost_only_where_groups_are_compared(options, told):
    [found] = summarise([Run("a", "", "rpo", [StepRecord(1, 0, 1, AGREE)], [], options=options)])["runs"]
    assert any("gave no signal" in line for line in found["sentences"]) == told


def test_only_later_steps_are_read_again_unless_the_run_went_back(tmp_path, begin_run, take_step):
    url = begin_run(tmp_path)
    for step in (1, 2):
        take_step(url, step)
    with PathCache.open_to_read(url) as cache:
        first = read_run(cache, "r", "", 3).records
    take_step(url, 3)
    with PathCache.open_to_read(url) as cache:
        later = read_run(cache, "r", "", 3, first).records
    assert [r.step for r in later] == [1, 2, 3] and later[0] is first[0]
    with PathCache.open(url) as cache:
        cache.rollback(1)
    take_step(url, 2, reward=9.0)
    with PathCache.open_to_read(url) as cache:
        again = read_run(cache, "r", "", 3, later).records
    assert [r.metrics["reward"] for r in again] == [0.5, 9.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"initialised": False, "cached": 3, "questions": 8, "records": []}, "3 of 8 questions have a path so far"),
        ({"records": []}, "No step was committed yet"),
        ({"planned_steps": 5}, "Unfinished: 2 of 5 steps"),
        ({"evaluations": []}, "because it includes prefixes"),
        ({"evaluations": [], "kind": "plain"}, "because it is of the questions trained on"),
        ({}, "an earlier version of openrlhf_rpo wrote"),
        ({"records": [record(1, rpo__score=1)]}, "an earlier version of openrlhf_rpo wrote"),
        ({"kept_from": 7}, "replaced before step 7 were pruned"),
        ({"notes": ("said elsewhere",)}, "said elsewhere"),
    ],
)
def test_what_is_missing_is_said(changes, words):
    assert any(words in note for note in state_of(replace(build(), **changes)))


def test_a_run_with_everything_needs_no_note():
    run = build(planned_steps=2)
    run.records[-1].metrics["reward"] = 1.0
    assert state_of(run) == []


@pytest.mark.parametrize("figures", [({"critic_loss": 0.1}, {}), ({}, {"critic_loss": 0.1}), ({"reward": 1}, {})])
def test_a_run_whose_critic_alone_trains_for_a_while_is_not_taken_for_an_old_one(figures):
    """--critic.freezing_steps; and a step of which something is missing says nothing about the others."""
    assert state_of(replace(build(), records=[record(step, **found) for step, found in enumerate(figures, 1)])) == []


def test_a_figure_that_is_not_finite_is_null():
    run = replace(build(), records=[record(1, a=1, b=math.nan), record(2, a=2)])
    assert columns(run) == {"steps": [1, 2], "series": {"a": [1.0, 2.0], "b": [None, None]}}


# ── Event files ──


def test_a_plain_run_is_read_under_our_names(plain_folder):
    run = read_event_files(event_folder(str(plain_folder)), "plain")
    assert (run.kind, run.latest_step, run.accuracy()) == ("plain", 4, [(2, pytest.approx(0.55)), (4, pytest.approx(0.65))])
    assert run.series(GENERATED_TOTAL) == [800, 1600, 2400, 3200]
    assert run.series("rpo/score") == pytest.approx([0.4, 0.5, 0.6, 0.7])
    assert run.series("timing/rollout") == [6] * 4 and run.series(STEP_SECONDS) == [8] * 4
    assert "no path cache" in run.notes[0]


def log(folder, steps):
    with SummaryWriter(folder) as writer:
        for step in steps:
            for name in ("rollout/response_length_mean", "rollout/num_samples", "timing/step_total"):
                writer.add_scalar(f"train/{name}", 10.0, step)
            writer.add_scalar("eval/eval_default_pass1", 0.5 + step / 100, step)
    return folder


@pytest.mark.parametrize(
    ("steps", "words"), [((5, 10, 15), "Logged every 5 steps"), ((1, 2, 4), "Only 3 of 4 steps are logged"), ((1, 2), None)]
)
def test_steps_that_are_not_logged_leave_the_totals_unknown(tmp_path, steps, words):
    run = read_event_files(log(tmp_path, steps), "plain")
    known = words is None
    assert any("unknown" in note for note in run.notes) != known
    assert known or run.notes[1] == f"{words}: totals of tokens and seconds are unknown."
    for cost in ("tokens", "seconds"):
        assert len(accuracy_by(run, cost)) == (2 if known else 0)
    assert run.series("rpo/generated_tokens") == [10] * len(steps)


def test_an_event_file_that_is_cut_or_damaged_is_named_with_its_last_step(tmp_path):
    [file] = log(tmp_path, (1, 2, 3, 4)).iterdir()
    whole = file.read_bytes()
    assert len(read_event_files(tmp_path, "plain").notes) == 1
    content = bytearray(whole)
    content[len(whole) // 2] ^= 255
    for broken in (whole[:-9], bytes(content)):
        file.write_bytes(broken)
        run = read_event_files(tmp_path, "plain")
        [note] = run.notes[1:]
        assert note == f"{file.name} is damaged or cut short after step {run.latest_step}."


def test_event_files_of_several_runs_are_told_apart(tmp_path, plain_folder):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(UsageError, match="the event files of 2 runs. Name one of them:\n.*/a\n.*/b"):
        event_folder(str(tmp_path))
    assert event_folder(str(tmp_path / "a")) == tmp_path / "a"
    assert event_folder(str(tmp_path / "c")) is None


def test_event_files_of_something_else_are_refused(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    with pytest.raises(UsageError, match="no figure under train/ or eval/"):
        read_event_files(tmp_path, "x")


def log_ours(folder, reused):
    """Two steps of our own run whose initial cache took 1000 tokens, and evaluations from the start on."""
    with SummaryWriter(folder) as writer:
        for step in (1, 2):
            figures = {GENERATED_TOTAL: 1000 + 100 * step, REUSED_TOTAL: reused * step, STEP_SECONDS: 10}
            for name, value in figures.items():
                writer.add_scalar(f"train/{name}", value, step)
        for step in (0, 2):
            writer.add_scalar("eval/eval_default_pass1", 0.5 + step / 10, step)
    return read_event_files(folder, "ours")


def test_what_the_event_files_of_our_own_run_do_not_say_is_not_made_up(tmp_path):
    """The total includes the initial cache, whose tokens are in the database alone."""
    run = log_ours(tmp_path, reused=50)
    assert run.replays and run.initial_tokens is None and not any(text.startswith("Saved") for text in sentences(run))
    assert accuracy_by(run, "tokens") == [(1200.0, pytest.approx(0.7))]
    assert document("t", "", [run])["runs"][0]["initial_tokens"] is None


def test_a_run_of_unknown_method_that_reused_nothing_did_not_replay(tmp_path):
    assert not log_ours(tmp_path, reused=0).replays
    known = build(options={"rpo.method": '"rpo"'})
    known.records[-1].metrics[REUSED_TOTAL] = 0.0  # an epoch without paths yet
    assert known.replays


# ── Several runs ──


def test_accuracy_against_cost_by_hand():
    run = build(initial_tokens=20)
    assert accuracy_by(run, "tokens") == [(20.0, 0.4), (100.0, 0.5), (200.0, 0.7)]
    assert accuracy_by(run, "seconds") == [(0.0, 0.4), (10.0, 0.5), (20.0, 0.7)]
    curve = accuracy_by(run, "tokens")
    assert at(curve, 150) == pytest.approx(0.6) and at(curve, 10) is None and at(curve, 201) is None
    assert cost_of(curve, 0.6) == pytest.approx(150) and cost_of(curve, 0.71) is None
    assert cost_of(curve, 0.4) is None  # it began there


def test_an_evaluation_of_unknown_cost_is_left_out():
    assert accuracy_by(build(accuracy=((0, 0.4), (2, 0.7)), generated=()), "seconds") == [(0.0, 0.4)]


def test_runs_of_other_data_are_compared_with_a_note_that_names_what_differs():
    one, other = (
        build(fingerprints={"data": "d1", "tokenizer": "t"}),
        build("b", fingerprints={"data": "d2", "tokenizer": "t"}),
    )
    [note] = differences([one, other])
    assert "not have the same training questions (fingerprints: a d1, b d2)" in note and "accuracies can be compared" in note
    assert differences([one, one]) == []


@pytest.mark.parametrize(
    ("model", "words"),
    [("m1", "weights of the base model (fingerprints: a w1, b w2)"), ("m2", "base model (fingerprints: a m1,")],
)
def test_runs_that_start_from_other_weights_are_compared_with_one_note(model, words):
    one = build(fingerprints={"base model": "m1", "weights": "w1"})
    [note] = differences([one, build("b", fingerprints={"base model": model, "weights": "w2"})])
    assert f"not have the same {words}" in note and note.endswith("compare the gain, not the final accuracy.")


def test_a_run_that_does_not_say_what_it_is_of_is_named():
    known = build(fingerprints={"data": "d"})
    assert "b: data, tokenizer and base model are not recorded" in differences([known, build("b", "plain")])[0]
    assert differences([build("b", "plain")]) == []


def test_options_that_differ_are_listed_with_each_value():
    one, other = build(options={"x": "1", "name": '"a"', "same": "2"}), build("b", options={"x": "3", "same": "2"})
    assert changed_options([one, other]) == [
        {"name": "name", "values": ["a", None]},
        {"name": "x", "values": ["1", "3"]},
    ]
    assert changed_options([one, build("c")]) == []


# ── In words ──


def sentences(*runs):
    return [text for run in summarise(runs)["runs"] for text in run["sentences"]]


def test_what_was_saved_is_counted_against_whole_paths():
    """200 generated and 100 reused: whole paths would have been 300, less what the initial cache took."""
    for initial, whole, said in ((0, 300, "33% fewer"), (20, 280, "29% fewer"), (150, 150, "33% more")):
        [saved] = [text for text in sentences(build(initial_tokens=initial)) if text.startswith("Saved")]
        assert "100 tokens were taken" in saved and f"would have been {whole} tokens" in saved and said in saved
        assert (f"the initial cache took {initial}" in saved) == (initial > 0)
    assert not any(text.startswith("Saved") for text in sentences(build(initial_tokens=300)))  # forged: nothing is left


def test_shares_count_every_sample_once():
    """Steps of 10, 30 and 10 samples: a share of 1, 0 and 1 is 40% of them, where the mean of the steps is 67%."""
    totals, shares = (1100, 1400, 1500), (1.0, 0.0, 1.0)
    names = ("groups_without_variance", "groups_all_right", "truncated_rate", "path_length", "policy_age", "policy_age_max")
    records = [
        record(step, rpo__generated_tokens=10, **{f"rpo__{name}": share for name in names}, rpo__groups_all_wrong=1 - share)
        for step, share in enumerate(shares, 1)
    ]
    for made, total, seconds, busy in zip(records, totals, (60, 20, 20), (0.5, 1, 1), strict=True):
        made.metrics.update({GENERATED_TOTAL: total, STEP_SECONDS: seconds, "rpo/rollout_busy": busy, "rpo/train_busy": 1})
    told = "\n".join(sentences(replace(build(initial_tokens=1000), records=records)))
    assert "in 40% of the groups" in told and "all right 40%, all wrong 60%" in told and "40.0% of the samples" in told
    assert "the rollout side worked 70% of" in told and "policies 0.4 steps behind" in told
    unknown = replace(build(initial_tokens=None), records=records)  # the first step counts as an average one of 20
    assert "in 50% of the groups" in "\n".join(sentences(unknown))


def test_a_plain_run_saves_nothing_and_is_not_said_to():
    assert not any(text.startswith("Saved") for text in sentences(build("b", "plain")))


def test_a_score_that_rises_while_accuracy_falls_is_pointed_out():
    records = [record(step, rpo__score=step / 10) for step in range(1, 9)]
    fallen = replace(build(accuracy=((0, 0.5), (4, 0.7), (8, 0.6))), records=records)
    assert any(text.startswith("Watch out: accuracy fell by 0.100") for text in sentences(fallen))
    steady = replace(fallen, evaluations=fallen.evaluations[:2])
    assert not any(text.startswith("Watch out") for text in sentences(steady))
    level = replace(fallen, records=[record(step, rpo__score=0.9) for step in range(1, 9)])
    assert not any(text.startswith("Watch out") for text in sentences(level))


def test_a_run_that_replays_nothing_is_what_the_others_are_compared_with():
    off = build("b", options={"rpo.method": '"off"'})
    assert not any(text.startswith("Saved") for text in sentences(off))
    assert summarise([off])["against"] == []
    assert summarise([build(), off])["against"] == summarise([build(), build("b", "plain")])["against"] != []


def test_against_a_plain_run_at_equal_tokens_and_for_equal_accuracy():
    """Ours reaches 0.6 at 150 tokens, the plain one at 400."""
    plain = build("b", "plain", generated=(200, 400), accuracy=((0, 0.4), (1, 0.5), (2, 0.6)))
    told = summarise([build(), plain])["against"]
    assert "After 200 generated tokens: a 0.700, b 0.500 (interpolated accuracy)." in told
    assert "To reach 0.600: a 150 generated tokens, b 400 generated tokens (62% fewer)." in told
    assert "To reach 0.600: a 15 s of steps, b 20 s of steps (25% less)." in told
    assert told[-1] == "Best accuracy: a 0.700, b 0.600."
    told = summarise([build(initial_tokens=7), plain])["against"]
    assert told[-2] == "The initial cache of a is not in its time."


def test_a_run_that_only_lost_accuracy_is_not_said_to_have_reached_any_sooner():
    plain = build("b", "plain", accuracy=((1, 0.5), (2, 0.6)))
    told = summarise([build(accuracy=((0, 0.5), (1, 0.4), (2, 0.3))), plain])["against"]
    assert not any("To reach" in text for text in told) and "Best accuracy: a 0.500, b 0.600." in told


def test_too_few_evaluations_are_not_compared():
    told = summarise([build(accuracy=()), build("b", "plain", accuracy=())])["against"]
    assert told == ["a and b have too few evaluations in common to be compared at equal cost."]


def test_a_run_alone_is_told_what_it_cannot_know():
    assert "No run without replay" in summarise([build()])["against"][0]
    assert summarise([build(), build("b")])["against"] == []
