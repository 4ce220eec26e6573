"""Laws of the presets."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.presets import DAPO, GRPO, PRESETS, RAFT, RPO_PAPER, dapo_overlong_buffer, expand
from openrlhf_rpo.cli.options import build_parser
from openrlhf_rpo.config import GROUPS, RPOConfig, add_options

NAMES = st.lists(st.sampled_from(sorted(PRESETS)), max_size=3)
OPTIONS = sorted({option for preset in PRESETS.values() for option in preset} | {"reward.overlong_buffer_len"})


def test_no_preset_sets_nothing():
    assert expand(None, set(), 1000) == expand("", set(), 1000) == {}


def test_grpo_is_its_own_dictionary():
    assert expand("grpo", set(), 1000) == GRPO


def test_dapo_penalizes_the_last_fifth_of_the_longest_answer():
    assert expand("dapo", set(), 20480) == DAPO | {"reward.overlong_buffer_len": 4096}
    assert dapo_overlong_buffer(600) == 120
    assert dapo_overlong_buffer(3) == 1  # upstream divides by it


def test_later_presets_win():
    both = expand("grpo, dapo", set(), 1000)
    assert both["actor.eps_clip_low_high"] == [0.2, 0.28]
    assert both["algo.kl.estimator"] == "k3"


@given(NAMES, st.sets(st.sampled_from(OPTIONS)))
def test_a_flag_given_by_hand_is_never_set(names, given_by_hand):
    everything = expand(",".join(names), set(), 1000)
    rest = expand(",".join(names), given_by_hand, 1000)
    assert rest == {option: value for option, value in everything.items() if option not in given_by_hand}


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown preset 'ppo'; known: paper, grpo, raft, dapo"):
        expand("grpo,ppo", set(), 1000)


def test_the_paper_preset_is_made_of_options_that_exist_and_pass_their_check():
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert RPO_PAPER.keys() <= {action.dest for action in parser._actions}
    values = {name: {} for name in GROUPS}
    for option, value in RPO_PAPER.items():
        _, group, field = option.split(".")
        values[group][field] = value
    RPOConfig(**{name: GROUPS[name](**values[name]) for name in GROUPS}).check()


def test_the_presets_of_papers_are_made_of_options_that_exist():
    actions = {action.dest: action for action in build_parser()._actions}
    for option, value in (GRPO | RAFT | DAPO | {"reward.overlong_buffer_len": 1}).items():
        assert option in actions
        assert not actions[option].choices or value in actions[option].choices
