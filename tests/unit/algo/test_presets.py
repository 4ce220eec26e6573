"""Laws of the presets, and of what they and a method set together."""

import pytest

from openrlhf_rpo.algo.methods import METHODS
from openrlhf_rpo.algo.presets import DAPO, GRPO, PRESETS, RAFT, dapo_overlong_buffer, expand, preset
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.options import build_parser


def test_grpo_is_its_own_dictionary():
    assert preset("grpo", 1000) == GRPO


def test_dapo_penalizes_the_last_fifth_of_the_longest_answer():
    assert preset("dapo", 20480) == DAPO | {"reward.overlong_buffer_len": 4096}
    assert dapo_overlong_buffer(600) == 120
    assert dapo_overlong_buffer(3) == 1  # upstream divides by it


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="unknown preset 'ppo'; known: grpo, raft, dapo"):
        preset("ppo", 1000)


def test_nothing_sets_nothing_and_one_sets_all_of_its_own():
    assert expand({}, set()) == {}
    assert expand({"grpo": GRPO}, set()) == GRPO


@pytest.mark.parametrize("name", PRESETS)
def test_an_option_given_by_hand_is_never_set(name):
    everything = preset(name, 1000)
    for given in everything:
        assert expand({name: everything}, {given}) == {k: v for k, v in everything.items() if k != given}


def test_two_that_contradict_each_other_are_refused_and_named_with_the_option():
    with pytest.raises(UsageError, match=r"grpo and dapo contradict each other: --actor.eps_clip_low_high is \[0.2, 0.2\]"):
        expand({"grpo": GRPO, "dapo": DAPO}, set())


def test_two_that_say_the_same_are_not():
    assert expand({"a": {"x": 1, "y": 2}, "b": {"x": 1, "z": 3}}, set()) == {"x": 1, "y": 2, "z": 3}


def test_what_is_given_by_hand_settles_a_contradiction():
    differing = {name for name in GRPO.keys() & DAPO.keys() if GRPO[name] != DAPO[name]}
    assert expand({"grpo": GRPO, "dapo": DAPO}, differing).keys() == (GRPO | DAPO).keys() - differing


def test_presets_and_methods_set_options_that_exist_to_values_that_these_take():
    actions = {action.dest: action for action in build_parser()._actions}
    of_methods = {name: value for method in METHODS.values() for name, value in method.sets.items()}
    for option, value in (GRPO | RAFT | DAPO | {"reward.overlong_buffer_len": 1} | of_methods).items():
        assert option in actions
        assert not actions[option].choices or value in actions[option].choices
