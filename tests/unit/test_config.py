"""Every option is checked, and says what it wants."""

import argparse
import math
from dataclasses import fields

import pytest

from openrlhf_rpo.config import (
    GROUPS,
    CacheOptions,
    CutOptions,
    InitOptions,
    OptionError,
    PrefixLossOptions,
    RewardOptions,
    RPOConfig,
    UpdateOptions,
    add_options,
    defaults_with,
)
from openrlhf_rpo.upstream import nest

REFUSED = {
    "init.source": ("paths.parquet",),  # without --rpo.init.mode import
    "init.n_samples": (0, -1),
    "init.max_tries": (0,),
    "init.batch_size": (0,),
    "init.temperature": (-0.1, math.nan, math.inf),
    "init.top_p": (0.0, 1.1, math.nan),
    "init.max_new_tokens": (0,),
    "cut.rule": ("middle", "rule.txt:f", "failure", "expert"),  # the last two need another option
    "cut.after_all_right": ("none", "failure"),
    "cut.after_all_wrong": ("none", "uniform"),  # after a reset there is no path to cut
    "cut.lenience": (-0.1, math.inf, math.nan),
    "cut.depths": (0,),
    "cut.max_reuses": (-1,),
    "update.rule": ("newest",),
    "cut.max": ("ratio:0", "ratio:1.5", "fixed:-1", "ratio:nan", "fixed:inf", "ratio:", "half:0.5", "300", ""),
    "cut.target": (0.0, 1.0, math.nan),
    "cut.fresh_share": (-0.1, 1.1, math.nan),
    "budget.rule": ("factor:0", "factor:-1", "factor:x", "factor:inf", "most"),
    "budget.floor": (0,),
    "shaping.alpha": (-0.01, math.inf, math.nan),
    "shaping.min": (1.1, math.nan),
    "shaping.max": (0.4, math.nan),
    "replay.share": (-0.1, 1.0),
    "prefix_loss.cap": (0.0, -1.0, math.nan),
    "dynamic.max_batches": (0,),
    "update.epsilon": (-0.1, 1.1, math.nan),
    "cache.url": ("cache.db", "postgresql://host/db"),
    "cache.keep_versions": (-1,),
    "reward.weights": ("1,1", "1"),
    "reward.cosine_max_len": (0,),
    "reward.timeout": (0.0, -1.0, math.inf, math.nan),
    "reward.workers": (0,),
    "reward.on_failure": (math.nan, math.inf),
    "reward.max_failure_share": (-0.1, 1.1, math.nan),
}
NOT_CHECKED = {"reward.functions"}  # named and checked where the shipped rewards are known

ACCEPTED = {
    "init.temperature": (0.0, 2.0),
    "init.top_p": (0.1, 1.0),
    "cut.rule": ("uncertain", "rules.py:middle"),
    "cut.after_all_right": ("uncertain",),
    "cut.lenience": (0.0, 1.5),
    "cut.max_reuses": (0, 1),
    "update.rule": ("every", "rules.py:newest"),
    "cut.max": ("ratio:1", "ratio:0.001", "fixed:0", "fixed:800"),
    "cut.target": (0.01, 0.99),
    "cut.fresh_share": (0.0, 1.0),
    "budget.rule": ("remaining", "factor:0.5", "factor:2"),
    "shaping.alpha": (0.0, 10.0),
    "shaping.min": (1.0, -1.0),
    "prefix_loss.cap": (0.1, 10.0),
    "update.epsilon": (0.0, 1.0),
    "cache.url": ("sqlite:///cache.db", "sqlite:////tmp/cache.db", "postgresql+psycopg://user@host/cache"),
    "cache.keep_versions": (0, 10),
    "reward.on_failure": (-1.0,),
    "reward.max_failure_share": (0.0, 1.0),
}


def cases(table):
    return [(name, value) for name, values in table.items() for value in values]


def config(**groups) -> RPOConfig:
    made = RPOConfig(**groups)
    made.check()
    return made


CUT = CutOptions(rule="uniform")
ONE_PATH = UpdateOptions(rule="epsilon_greedy")


def with_value(name: str, value) -> RPOConfig:
    group, option = name.split(".")
    return config(**{group: GROUPS[group](**{option: value})})


def test_the_defaults_are_accepted():
    assert (config().cut.rule, config().update.rule) == ("verify", "every")


def test_the_defaults_of_another_cut_rule_are_accepted():
    assert defaults_with("verify") == {}
    values = {name: {} for name in GROUPS}
    for option, value in defaults_with("uniform").items():
        _, group, field = option.split(".")
        assert value != getattr(GROUPS[group](), field), f"{option} has one default, not two"
        values[group][field] = value
    values["cut"]["rule"] = "uniform"
    config(**{name: GROUPS[name](**values[name]) for name in GROUPS})


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_a_value_out_of_range_is_refused_and_the_option_named(name, value):
    group = name.split(".")[0]
    with pytest.raises(OptionError, match=rf"^--rpo\.{group}\."):
        with_value(name, value)


@pytest.mark.parametrize(("name", "value"), cases(ACCEPTED))
def test_the_ends_of_a_range_are_accepted(name, value):
    with_value(name, value)


def test_every_option_without_a_list_of_choices_has_a_range():
    free = {
        f"{name}.{f.name}"
        for name, group in GROUPS.items()
        for f in fields(group)
        if not f.metadata["choices"] and not isinstance(f.default, bool)
    }
    assert free == set(REFUSED) | NOT_CHECKED


@pytest.mark.parametrize("mode", ["include", "weighted"])
def test_prefix_tokens_in_the_loss_need_their_log_probs(mode):
    with pytest.raises(OptionError, match="needs stored log-probs: drop --rpo.cache.log_probs false"):
        config(prefix_loss=PrefixLossOptions(mode=mode), cache=CacheOptions(log_probs=False), cut=CUT)
    config(prefix_loss=PrefixLossOptions(mode="mask"), cache=CacheOptions(log_probs=False), cut=CUT)


@pytest.mark.parametrize("rule", ["uncertain", "verify"])
def test_a_cut_by_log_probs_needs_them_stored(rule):
    with pytest.raises(OptionError, match=f"cut.rule {rule} needs stored log-probs"):
        config(cut=CutOptions(rule=rule), cache=CacheOptions(log_probs=False), prefix_loss=PrefixLossOptions(mode="mask"))


def test_a_cut_rule_and_the_update_rule_that_keeps_its_paths_go_together():
    with pytest.raises(OptionError, match="add --rpo.update.rule every, or another cut rule$"):
        config(cut=CutOptions(rule="verify"), update=ONE_PATH)
    with pytest.raises(OptionError, match="add --rpo.update.rule right_and_wrong$"):
        config(cut=CutOptions(rule="uniform", after_all_right="failure"), update=ONE_PATH)
    config(cut=CutOptions(rule="uniform", after_all_right="failure"), update=UpdateOptions(rule="right_and_wrong"))
    config(cut=CutOptions(rule="verify"), update=UpdateOptions(rule="every"))
    config(cut=CutOptions(rule="verify"), update=UpdateOptions(rule="mine.py:all"))  # the user knows


def test_a_rule_after_groups_that_were_all_wrong_needs_their_paths():
    options = {
        "cut": CutOptions(rule="uniform", after_all_wrong="expert"),
        "init": InitOptions(mode="import", source="paths.parquet"),
    }
    with pytest.raises(OptionError, match="add --rpo.update.on_all_wrong keep"):
        config(**options, update=ONE_PATH)
    config(**options, update=UpdateOptions(rule="epsilon_greedy", on_all_wrong="keep"))


def test_an_import_needs_its_source_and_a_source_an_import():
    config(init=InitOptions(mode="import", source="paths.parquet"))
    with pytest.raises(OptionError, match="--rpo.init.mode import: --rpo.init.source is missing"):
        config(init=InitOptions(mode="import"))
    with pytest.raises(OptionError, match="--rpo.init.source paths.parquet: it needs --rpo.init.mode import"):
        config(init=InitOptions(source="paths.parquet"))


def test_the_sample_log_needs_room():
    with pytest.raises(OptionError, match="--rpo.log_samples_mb 0"):
        config(log_samples_mb=0)


def test_weights_are_one_for_each_reward():
    config(reward=RewardOptions(functions="math,format", weights="1,0.1"))
    with pytest.raises(OptionError, match="one weight for each"):
        config(reward=RewardOptions(functions="math", weights="1,0.1"))


# ── On the command line ──


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_options(made)
    return made


def parsed(*words: str) -> RPOConfig:
    return RPOConfig.from_namespace(nest(parser().parse_args(words)).rpo)


def test_without_options_the_parser_gives_the_defaults():
    assert parsed() == RPOConfig()


def test_a_value_is_of_the_type_of_its_default():
    rpo = parsed("--rpo.init.max_new_tokens", "9", "--rpo.init.top_p", "1", "--rpo.enable", "no", "--rpo.cut.max", "fixed:3")
    assert (rpo.init.max_new_tokens, rpo.init.top_p, rpo.enable, rpo.cut.max) == (9, 1.0, False, "fixed:3")
    assert isinstance(rpo.init.top_p, float)


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", "on"])
def test_true(text):
    assert parsed("--rpo.update.enable", text).update.enable is True


@pytest.mark.parametrize("text", ["false", "FALSE", "0", "no", "off"])
def test_false(text):
    assert parsed("--rpo.update.enable", text, "--rpo.init.mode", "bulk").update.enable is False


def test_a_cache_that_starts_empty_is_updated():
    with pytest.raises(OptionError, match="nothing would ever be replayed"):
        config(update=UpdateOptions(enable=False))


def test_a_place_for_every_sample_leaves_none_for_an_experts_path():
    options = {"init": InitOptions(mode="import", source="a.jsonl:b"), "cut": CutOptions(rule="expert")}
    config(**options, update=ONE_PATH)
    with pytest.raises(OptionError, match="the imported ones would be overwritten"):
        config(**options, update=UpdateOptions(rule="every"))


def options_with_choices():
    return [a for a in parser()._actions if a.choices]


@pytest.mark.parametrize("action", options_with_choices(), ids=lambda a: a.dest)
def test_a_choice_that_is_not_listed_is_refused(action, capsys):
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args([action.option_strings[0], "nonsense"])
    assert stopped.value.code == 2
    assert action.option_strings[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("--rpo.enable", "maybe"), ("--rpo.init.n_samples", "two"), ("--rpo.cut.fresh_share", "x")]
)
def test_a_value_of_the_wrong_type_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert words[0] in capsys.readouterr().err


def test_every_option_has_a_line_of_help_with_its_default_or_both():
    others = defaults_with("uniform")
    for action in parser()._actions[1:]:
        both = f"{action.default} with cut.rule verify, {others.get(action.dest)} with another"
        default = both if action.dest in others else action.default
        assert action.help and action.help.endswith(f" (default: {default})")
