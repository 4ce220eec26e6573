"""Defects of the RPO reference code that a rule could repeat, one law each; the number is the defect's.

The others lie elsewhere: what is written when, who scores, what a failure does.
"""

import random
from collections import Counter

import pytest

from openrlhf_rpo.algo.cuts import largest_cut
from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.algo.epsilon_greedy import pick
from openrlhf_rpo.algo.methods import RPO, Cut, Stored
from openrlhf_rpo.algo.methods.prefixes import choose_paths, choose_prefixes
from openrlhf_rpo.algo.shaping import ShapingOptions, shape_rewards
from openrlhf_rpo.types import OWN, Path, Prefix, Sample


def path(*token_ids, question_id="q", finish="length"):
    return Path(question_id, token_ids, (-0.5,) * len(token_ids), finish, 1.0, 1.0)


def prefixes(cached, largest, n=1, step=1, method=RPO):
    chosen = method(cut_max=largest)
    paths = choose_paths(chosen, Stored({OWN: cached}), n)
    return choose_prefixes(chosen, Cut(paths, keyed_generator(42, step, cached.question_id, "cut")), 10_000)


def test_1_shaping_takes_effect():
    scores, lengths = [1.0, 1.0], [100, 300]
    shaped = shape_rewards(scores, lengths, ShapingOptions(alpha=0.01))
    assert shaped != scores
    assert shaped[0] > shaped[1]


def test_2_the_group_is_the_reference_not_each_sample_its_own():
    """Each sample its own reference would give every right answer exactly 0.5."""
    assert shape_rewards([1.0, 1.0, 1.0], [100, 200, 300], ShapingOptions(alpha=0.01)) == pytest.approx(
        [0.7310585786, 0.5, 0.5]
    )


def test_3_lengths_are_tokens_of_the_whole_path():
    sample = Sample(Prefix((1, 2, 3)), (4, 5), (-0.1, -0.1), "stop")
    assert sample.path_length == 5


@pytest.mark.parametrize(("alpha", "best"), [(0.001, 0.5249791875), (0.01, 0.7310585786), (0.1, 0.9999546021)])
def test_3_alpha_is_the_options(alpha, best):
    assert shape_rewards([1.0, 1.0], [100, 300], ShapingOptions(alpha=alpha))[0] == pytest.approx(best)


class ByTwo(RPO):
    def cuts(self, cut):
        return cut.alike(lambda: 2)


def test_4_a_short_path_loses_its_own_last_tokens_beside_a_long_one():
    """Padded to 6 and cut by 2, the short row would lose padding only."""
    long, short = path(1, 2, 3, 4, 5, 6), path(7, 8, 9, question_id="r")
    assert [tuple(prefixes(p, "fixed:2", method=ByTwo)[0].token_ids) for p in (long, short)] == [(1, 2, 3, 4), (7,)]


def test_4_a_cut_of_0_keeps_the_path_instead_of_emptying_it():
    assert tuple(prefixes(path(1, 2, 3), "fixed:0")[0].token_ids) == (1, 2, 3)


def test_5_prefix_ids_are_the_head_of_the_stored_ids_special_tokens_included():
    """Ids that no tokenizer would give back from their text: a special token inside, a word split in odd places."""
    stored = path(151643, 7, 7, 0, 151645, 9, finish="stop")
    for step in range(20):
        (prefix,) = prefixes(stored, "ratio:1", step=step)
        assert prefix.token_ids == stored.token_ids[: 6 - prefix.cut]


def test_6_each_question_has_its_own_cut():
    cuts = {prefixes(path(*range(100), question_id=f"q{i}"), "ratio:1")[0].cut for i in range(16)}
    assert len(cuts) > 8


def test_6_the_largest_cut_is_the_options_and_0_is_drawn():
    assert largest_cut("fixed:800", 1000, 80) == 800
    assert largest_cut("ratio:0.5", 1000, 80) == 40
    assert 0 in {prefixes(path(*range(10)), "fixed:3", step=step)[0].cut for step in range(50)}


def test_7_the_random_candidate_may_be_the_last_and_is_never_the_best():
    group = ([0.9, 1.0, 0.8, 0.7], [5, 5, 5, 5], [0, 1, 2, 3])
    taken = Counter(pick(*group, 0.0, random.Random(seed))[0] for seed in range(600))
    assert taken.keys() == {0, 2, 3}
    assert all(abs(count - 200) < 60 for count in taken.values())  # 5 standard deviations


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.9])
def test_7_epsilon_is_the_options(epsilon):
    best = sum(pick([0.0, 1.0], [5, 5], [0, 1], epsilon, random.Random(i))[1] == "best" for i in range(2000))
    assert abs(best - 2000 * epsilon) < 112  # 5 standard deviations at most
