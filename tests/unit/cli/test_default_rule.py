"""Which cut rule a run has where none is given, and the options whose defaults go with it."""

from types import SimpleNamespace

import pytest

from openrlhf_rpo.cli import options
from openrlhf_rpo.cli.options import UsageError

VERIFIED = {"update.rule": "every", "prefix_loss.mode": "include", "replay.share": 0.85, "cut.max_reuses": 6}
OTHERS = {"update.rule": "epsilon_greedy", "prefix_loss.mode": "mask", "replay.share": 0.75, "cut.max_reuses": 0}
OWN_RULE = "def half(context):\n    return (len(context.path) // 2,) * context.n_samples\n"


@pytest.fixture
def command(argv):
    """Parse a good command that names no cut rule, with changes."""
    return lambda **changes: options.parse(argv(**{"rpo__cut__rule": None} | changes))


def what_goes_with_the_rule(args: SimpleNamespace) -> dict[str, object]:
    rpo = args.rpo
    return {
        "update.rule": rpo.update.rule,
        "prefix_loss.mode": rpo.prefix_loss.mode,
        "replay.share": rpo.replay.share,
        "cut.max_reuses": rpo.cut.max_reuses,
    }


# ── Where no rule is given ──


def test_verified_reuse_is_the_default(command):
    args = command()
    assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == ("verify", VERIFIED)


def test_a_rule_given_as_it_is_by_default_changes_nothing(command):
    assert vars(command(rpo__cut__rule="verify").rpo) == vars(command().rpo)


@pytest.mark.parametrize(
    "cause",
    [
        {"rpo__init__mode": "bulk"},
        {"rpo__init__mode": "import", "rpo__init__source": "paths.parquet"},
        {"rollout__temperature": 0.7},
        {"rollout__top_p": 0.9},
        {"rpo__cache__log_probs": "false"},
    ],
    ids=["bulk", "import", "temperature", "top_p", "no log-probs"],
)
def test_where_verified_reuse_cannot_be_or_has_one_path_for_all_samples_the_cut_is_uniform(command, cause):
    args = command(**cause)
    assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == ("uniform", OTHERS)


@pytest.mark.parametrize(
    "same", [{"rollout__temperature": "1.0"}, {"rollout__top_p": "1"}, {"rpo__init__mode": "progressive"}]
)
def test_a_cause_given_by_hand_at_its_default_is_none(command, same):
    assert command(**same).rpo.cut.rule == "verify"


def test_a_preset_that_is_about_other_things_leaves_verified_reuse(command):
    for preset in ("grpo", "dapo"):
        args = command(rpo__preset=preset)
        assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == ("verify", VERIFIED)


# ── Where one is ──


@pytest.mark.parametrize("rule", ["uniform", "uncertain", "adaptive", "tree", "bare"])
def test_another_rule_brings_the_other_defaults(command, rule):
    args = command(rpo__cut__rule=rule)
    assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == (rule, OTHERS)


def test_a_rule_of_ones_own_brings_the_other_defaults(command, tmp_path):
    (tmp_path / "mine.py").write_text(OWN_RULE)
    rule = f"{tmp_path}/mine.py:half"
    args = command(rpo__cut__rule=rule)
    assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == (rule, OTHERS)


@pytest.mark.parametrize("changes", [{}, {"rpo__init__mode": "progressive"}])
def test_the_papers_rule_brings_the_other_defaults_but_for_what_the_preset_says(command, changes):
    args = command(rpo__preset="paper,grpo", **changes)
    expected = OTHERS | {"prefix_loss.mode": "include", "replay.share": 0.0}
    assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == ("uniform", expected)


def test_a_rule_given_by_hand_wins_over_the_papers(command):
    args = command(rpo__preset="paper,grpo", rpo__cut__rule="uncertain")
    assert (args.rpo.cut.rule, args.rpo.update.rule, args.rpo.cut.max_reuses) == ("uncertain", "epsilon_greedy", 0)


@pytest.mark.parametrize("cause", [{"rollout__temperature": 0.7}, {"rollout__top_p": 0.9}])
def test_verified_reuse_that_is_asked_for_needs_the_distribution_that_it_scores(command, cause):
    with pytest.raises(UsageError, match="cut rule verify .* needs --rollout.temperature 1 and --rollout.top_p 1"):
        command(rpo__cut__rule="verify", **cause)


def test_verified_reuse_that_is_asked_for_may_begin_with_one_path_for_all_samples(command):
    args = command(rpo__cut__rule="verify", rpo__init__mode="bulk")
    assert (args.rpo.cut.rule, what_goes_with_the_rule(args)) == ("verify", VERIFIED)


# ── What is given by hand ──


BY_HAND = [("replay.share", 0.6), ("cut.max_reuses", 2), ("prefix_loss.mode", "weighted")]


@pytest.mark.parametrize(("rule", "defaults"), [(None, VERIFIED), ("uniform", OTHERS)])
@pytest.mark.parametrize(("name", "value"), BY_HAND)
def test_a_value_given_by_hand_wins_with_either_rule(command, rule, defaults, name, value):
    args = command(rpo__cut__rule=rule, **{f"rpo__{name.replace('.', '__')}": value})
    assert what_goes_with_the_rule(args) == defaults | {name: value}


@pytest.mark.parametrize(("rule", "other"), [(None, OTHERS), ("uniform", VERIFIED)])
@pytest.mark.parametrize("name", ["replay.share", "cut.max_reuses", "prefix_loss.mode"])
def test_the_other_rules_default_can_be_given_by_hand(command, rule, other, name):
    args = command(rpo__cut__rule=rule, **{f"rpo__{name.replace('.', '__')}": other[name]})
    assert what_goes_with_the_rule(args)[name] == other[name]


def test_an_update_rule_given_by_hand_wins(command, tmp_path):
    assert command(rpo__cut__rule="uniform", rpo__update__rule="every").rpo.update.rule == "every"
    (tmp_path / "mine.py").write_text("def all_of_them(context):\n    raise NotImplementedError\n")
    rule = f"{tmp_path}/mine.py:all_of_them"
    assert command(rpo__update__rule=rule).rpo.update.rule == rule
    with pytest.raises(ValueError, match="add --rpo.update.rule every, or another cut rule"):
        command(rpo__cut__rule="verify", rpo__update__rule="epsilon_greedy")


# ── Options that speak of another rule ──

CUTTING = [
    {"rpo__cut__max": "ratio:0.25"},
    {"rpo__cut__max": "ratio:0.5"},  # its default
    {"rpo__cut__scope": "sample"},
    {"rpo__update__epsilon": 0.5},
    {"rpo__update__admit": "any"},
]


@pytest.mark.parametrize("changes", CUTTING)
def test_an_option_that_only_a_rule_that_cuts_reads_brings_the_uniform_one(command, changes):
    args = command(**changes)
    assert args.rpo.cut.rule == "uniform"
    assert what_goes_with_the_rule(args) == OTHERS


@pytest.mark.parametrize("changes", CUTTING)
def test_beside_verified_reuse_by_name_it_is_refused_with_the_remedy(command, changes):
    [option] = ("--" + name.replace("__", ".") for name in changes)
    with pytest.raises(UsageError, match=f"does not read {option}: leave it out, or take a rule that cuts"):
        command(rpo__cut__rule="verify", **changes)


def test_an_update_rule_that_chooses_brings_the_uniform_cut(command, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("def pick(context):\n    return None\n")
    for rule in ("epsilon_greedy", "right_and_wrong", f"{own}:pick"):
        args = command(rpo__update__rule=rule)
        assert what_goes_with_the_rule(args) == OTHERS | {"update.rule": rule}
    assert command(rpo__update__rule="every").rpo.cut.rule == "verify"


def test_a_turn_of_a_rule_that_cuts_brings_the_uniform_one(command):
    args = command(rpo__cut__after_all_right="failure", rpo__update__rule="right_and_wrong", rpo__cut__max="ratio:1")
    assert (args.rpo.cut.rule, args.rpo.cut.max) == ("uniform", "ratio:1")
    assert command(rpo__cut__after_all_right="uncertain").rpo.cut.rule == "uniform"
    assert command(rpo__cut__after_all_right="bare").rpo.cut.rule == "verify"


def test_a_turn_beside_verified_reuse_by_name_reads_them(command):
    args = command(rpo__cut__rule="verify", rpo__cut__after_all_right="uniform", rpo__cut__max="ratio:0.25")
    assert (args.rpo.cut.rule, args.rpo.cut.max) == ("verify", "ratio:0.25")
    assert what_goes_with_the_rule(args) == VERIFIED


def test_segments_bring_a_rule_that_cuts_one_path(command):
    args = command(rpo__prefix_loss__mode="segment", rpo__cut__scope="sample", algo__advantage__estimator="reinforce")
    assert what_goes_with_the_rule(args) == OTHERS | {"prefix_loss.mode": "segment"}


def test_lenience_without_verified_reuse_is_refused(command):
    with pytest.raises(
        UsageError, match="--rpo.cut.lenience is read by --rpo.cut.rule verify alone, and the rule is uniform"
    ):
        command(rpo__cut__lenience=2, rollout__temperature=0.7)
    assert command(rpo__cut__lenience=2).rpo.cut.lenience == 2


def test_plain_openrlhf_may_have_any_of_them(command):
    for changes in (
        *CUTTING,
        {"rpo__update__rule": "right_and_wrong"},
        {"rpo__cut__rule": "verify", "rpo__cut__max": "fixed:9"},
    ):
        assert not command(rpo__enable="false", **changes).rpo.enable


def test_a_preset_may_have_them_beside_the_rule(command):
    assert command(rpo__preset="paper,grpo", rpo__cut__rule="verify", rpo__update__rule="every").rpo.cut.rule == "verify"
