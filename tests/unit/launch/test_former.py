"""A former option is refused with its successor, and a cache of a former run says its options in today's names."""

import json

import pytest

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.former import FORMER, FORMER_VALUES, refuse_former, removed, translated
from openrlhf_rpo.launch.options import build_parser


@pytest.mark.parametrize("option", FORMER)
def test_a_former_option_is_none_of_todays_and_names_what_took_its_place(option):
    assert option not in {action.dest for action in build_parser()._actions}
    for words in ([f"--{option}", "7"], [f"--{option}=7"]):
        with pytest.raises(UsageError, match=rf"^--{option} 7 is a former option; now: \S"):
            refuse_former(["--rollout.batch_size", "8", *words])


@pytest.mark.parametrize(("option", "value"), FORMER_VALUES)
def test_a_former_value_names_what_took_its_place(option, value):
    with pytest.raises(UsageError, match=f"--{option} {value} is a former option; now: --rpo"):
        refuse_former([f"--{option}", value])


@pytest.mark.parametrize("rule", ["uniform", "uncertain", "verify", "adaptive", "tree", "failure", "pivot", "expert"])
def test_every_former_rule_names_its_method(rule):
    with pytest.raises(UsageError, match=r"now: --rpo\.method \S+"):
        refuse_former(["--rpo.cut.rule", rule])
    with pytest.raises(UsageError, match="your own method"):
        refuse_former(["--rpo.cut.rule", "mine.py:f"])


def test_a_preset_among_others_is_found():
    with pytest.raises(UsageError, match="--rpo.preset paper,grpo is a former option; now: --rpo.method paper"):
        refuse_former(["--rpo.preset", "paper,grpo"])


def test_todays_options_pass():
    refuse_former(["--rpo.method", "verify", "--rpo.preset", "grpo", "--rpo.log_samples", "100", "--rpo.cut.max", "ratio:1"])


# ── What a cache says of its run ──

VERIFIED = {
    "rpo.cut.rule": "verify",
    "rpo.update.rule": "every",
    "rpo.prefix_loss.mode": "include",
    "rpo.cut.after_all_right": None,
    "rpo.cut.after_all_wrong": None,
    "rpo.advantage.baseline": "none",
    "rpo.advantage.weight": "response",
    "rpo.shaping.reference": "group",
    "rpo.budget.rule": "remaining",
    "rpo.update.enable": True,
    "rpo.update.epsilon": 0.1,
    "rpo.cut.max_reuses": 6,
    "rpo.cut.lenience": 1.0,
    "rpo.cut.fresh_share": 0.0,
    "rpo.replay.by": "batch",
    "rpo.replay.share": 0.85,
    "rollout.batch_size": 8,
}


def options(**changes):
    return {name: json.dumps(value) for name, value in (VERIFIED | changes).items()}


def of(stored):
    return {name: json.loads(value) for name, value in translated(stored).items()}


def test_a_run_of_verified_reuse():
    now = of(options())
    assert now["rpo.method"] == "verify" and now["rpo.replay.max_reuses"] == 6 and now["rpo.verify.lenience"] == 1.0
    assert now["rpo.advantage.baseline"] == "estimator" and now["rollout.batch_size"] == 8
    assert not now.keys() & FORMER.keys()


@pytest.mark.parametrize("rule", ["uniform", "uncertain"])
def test_a_run_that_cut(rule):
    cut = {"rpo.cut.rule": rule, "rpo.update.rule": "epsilon_greedy", "rpo.prefix_loss.mode": "mask"}
    now = of(options(**cut))
    assert (now["rpo.method"], now["rpo.cut.at"], now["rpo.update.epsilon"]) == ("rpo", rule, 0.1)
    assert of(options(**cut, **{"rpo.update.enable": False}))["rpo.update.epsilon"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rpo.cut.rule": "tree"},
        {"rpo.cut.rule": "uniform"},  # with verify's update rule
        {"rpo.cut.after_all_right": "failure"},
        {"rpo.advantage.baseline": "history"},
        {"rpo.prefix_loss.mode": "weighted"},
        {"rpo.cut.fresh_share": 0.2},
        {"rpo.replay.by": "step"},
        {"rpo.advantage.weight": "path"},
        {"rpo.shaping.reference": "rewarded"},
    ],
)
def test_a_run_that_no_method_of_today_goes_on_with_says_so(changes):
    assert of(options(**changes))["rpo.method"] == "none of this version"


def test_what_steered_a_run_and_is_gone_is_named():
    assert removed({"rpo.method": '"off"', "rpo.select": '"uniform"'}) == removed({}) == []
    assert removed({"rpo.select": '"signal"'}) == ['--rpo.select was "signal", which no version has any more']


def test_a_run_of_today_is_as_it_is():
    stored = {"rpo.method": '"rpo"', "rpo.cut.max": '"ratio:1"'}
    assert translated(stored) == stored
