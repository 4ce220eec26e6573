"""Every option is checked, and its error says what is expected."""

import argparse
import math

import pytest

from openrlhf_rpo.algo.methods import METHODS, RPO, option_names
from openrlhf_rpo.config import (
    GROUPS,
    InitOptions,
    RewardOptions,
    RPOConfig,
    _field,
    add_options,
    changeable,
    limits_of,
    top_options,
)
from openrlhf_rpo.errors import OptionError
from openrlhf_rpo.option import options_of
from openrlhf_rpo.upstream import nest

REFUSED = {
    "init.source": ("paths.parquet",),  # without --rpo.init.mode import
    "shaping.alpha": (-0.01, math.inf, math.nan),
    "shaping.min": (1.1, math.nan),
    "shaping.max": (0.4, math.nan),
    "dynamic.max_batches": (0,),
    "drafts.tokens": (0, 129),
    "async.max_age": (-1,),
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
    "shaping.alpha": (0.0, 10.0),
    "shaping.min": (1.0, -1.0),
    "cache.url": ("sqlite:///cache.db", "sqlite:////tmp/cache.db", "postgresql+psycopg://user@host/cache"),
    "cache.keep_versions": (0, 10),
    "drafts.tokens": (1, 128),
    "reward.on_failure": (-1.0,),
    "reward.max_failure_share": (0.0, 1.0),
}


def cases(table):
    return [(name, value) for name, values in table.items() for value in values]


def config(**groups) -> RPOConfig:
    made = RPOConfig(**groups)
    made.check()
    return made


def with_value(name: str, value) -> RPOConfig:
    group, option = name.split(".")
    return config(**{_field(group): GROUPS[group](**{option: value})})


def test_the_defaults_are_accepted_and_the_method_is_rpo():
    assert config().method == RPO()


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_a_value_out_of_range_is_refused_and_the_option_named(name, value):
    group = name.split(".")[0]
    with pytest.raises(OptionError, match=rf"^--rpo\.{group}\."):
        with_value(name, value)


@pytest.mark.parametrize(("name", "value"), cases(ACCEPTED))
def test_the_ends_of_a_range_are_accepted(name, value):
    with_value(name, value)


def test_every_option_of_a_group_without_a_list_of_choices_is_checked():
    free = {
        f"{name}.{option}"
        for name, group in GROUPS.items()
        for option, f in options_of(group).items()
        if not f.metadata["choices"] and not isinstance(f.default, bool)
    }
    assert free == set(REFUSED) | NOT_CHECKED


@pytest.mark.parametrize("kind", [RPOConfig, *GROUPS.values(), *METHODS.values()])
def test_every_number_has_bounds_and_its_default_is_inside(kind):
    for f in options_of(kind).values():
        number = isinstance(f.default, int | float) and not isinstance(f.default, bool)
        assert not number or f.metadata["bounds"].admit(f.default), f.name


def test_an_import_needs_its_source_and_a_source_an_import():
    config(init=InitOptions(mode="import", source="paths.parquet"))
    with pytest.raises(OptionError, match="--rpo.init.mode import: --rpo.init.source is missing"):
        config(init=InitOptions(mode="import"))
    with pytest.raises(OptionError, match="--rpo.init.source paths.parquet: it needs --rpo.init.mode import"):
        config(init=InitOptions(source="paths.parquet"))


def test_the_sample_log_has_room_or_is_off():
    config(log_samples=0)
    with pytest.raises(OptionError, match="--rpo.log_samples -1: at least 0"):
        config(log_samples=-1)


def test_the_limits_of_an_engine_are_one_number_or_two():
    assert limits_of("512") == {"max_num_seqs": 512}
    assert limits_of("512,8192") == {"max_num_seqs": 512, "max_num_batched_tokens": 8192}
    assert limits_of(None) == {}
    for wrong in ("0", "512,256", "512,8192,9000", "-1", "many", "1.5", ""):
        with pytest.raises(OptionError, match="^--rpo.engine_limits"):
            config(engine_limits=wrong)


def test_weights_are_one_for_each_reward():
    config(reward=RewardOptions(functions="math,format", weights="1,0.1"))
    with pytest.raises(OptionError, match="one weight for each"):
        config(reward=RewardOptions(functions="math", weights="1,0.1"))


def test_what_may_change_on_resume_is_said_beside_the_option():
    assert {"cache.url", "reward.workers", "shared_prefix", "preset", "log_samples"} <= set(changeable())
    assert not {"method", "async.max_age", "init.mode", "shaping.alpha", "reward.on_failure"} & set(changeable())


# ── On the command line ──


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_options(made)
    return made


def parsed(*words: str) -> RPOConfig:
    return RPOConfig.from_namespace(nest(parser().parse_args(words)).rpo)


def test_without_options_the_parser_gives_the_defaults():
    assert parsed() == RPOConfig()


def test_there_are_at_most_forty_one_options():
    assert len(parser()._actions) - 1 <= 41


def test_a_value_is_of_the_type_of_its_default():
    rpo = parsed("--rpo.log_samples", "9", "--rpo.shaping.alpha", "1", "--rpo.enable", "no", "--rpo.cut.max", "fixed:3")
    assert (rpo.log_samples, rpo.shaping.alpha, rpo.enable, rpo.method.cut_max) == (9, 1.0, False, "fixed:3")
    assert isinstance(rpo.shaping.alpha, float)


def test_the_method_is_made_of_its_own_options():
    assert parsed("--rpo.method", "verify", "--rpo.verify.lenience", "2").method.verify_lenience == 2.0
    with pytest.raises(OptionError, match="--rpo.verify.lenience -1.0: at least 0"):
        parsed("--rpo.method", "verify", "--rpo.verify.lenience", "-1")


def options_with_choices():
    return [a for a in parser()._actions if a.choices]


@pytest.mark.parametrize("action", options_with_choices(), ids=lambda a: a.dest)
def test_a_choice_that_is_not_listed_is_refused(action, capsys):
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args([action.option_strings[0], "nonsense"])
    assert stopped.value.code == 2
    assert action.option_strings[0] in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--rpo.enable", "maybe"), ("--rpo.log_samples", "two"), ("--rpo.replay.share", "x")])
def test_a_value_of_the_wrong_type_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(words)
    assert words[0] in capsys.readouterr().err


def test_every_option_has_a_line_of_help_with_its_default():
    for action in parser()._actions[1:]:
        assert action.help and f" (default: {action.default}" in action.help
        assert len(action.help) <= 330, f"{action.dest}: {len(action.help)} characters belong into the docs"


def test_the_help_of_a_methods_option_says_whose_it_is_and_where_defaults_differ():
    helps = {action.dest: action.help for action in parser()._actions}
    assert helps["rpo.replay.share"].endswith("(default: 0.75; of rpo, verify)")
    assert helps["rpo.budget.rule"].endswith("(default: remaining; factor:1 in paper; of rpo, paper)")
    assert helps["rpo.verify.lenience"].endswith("(default: 1.0; of verify)")


def test_every_option_is_of_the_run_of_a_group_or_of_a_method():
    ours = {f"rpo.{name}" for name in top_options().values()}
    ours |= {f"rpo.{group}.{option}" for group, kind in GROUPS.items() for option in options_of(kind)}
    ours |= {f"rpo.{name}" for kind in METHODS.values() for name in option_names(kind).values()}
    assert {action.dest for action in parser()._actions[1:]} == ours
