"""A step's metrics, worked out by hand."""

from dataclasses import replace

import pytest

from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL, cache_metrics, console_line, rollout_metrics
from openrlhf_rpo.types import CacheDecision, Group, Part, Path, Prefix, Question, Sample, Visit

QUESTION = Question("q", "1+1?", "2")
OLD = Path("q", tuple(range(10)), (-0.5,) * 10, "stop", 1.0, 1.0, step=2)


def sample(prefix, length, score, finish="stop"):
    return Sample(prefix, tuple(range(length)), (-1.0,) * length, finish, score, score)


def head(length):
    return Prefix(OLD.token_ids[:length], OLD.log_probs[:length], 10 - length, OLD)


MIXED = Group(QUESTION, (sample(head(6), 4, 1.0), sample(head(6), 10, 0.0, "length")))
BARE = Group(QUESTION, (sample(Prefix(), 20, 1.0), sample(Prefix(), 30, 1.0)))
WRONG = Group(QUESTION, (sample(head(0), 8, 0.0), sample(head(0), 8, 0.0)))


def test_rollout_metrics_worked_example():
    """Step 7; paths of step 2. Six samples, three groups, 80 tokens generated and 12 reused."""
    metrics = rollout_metrics([MIXED, BARE, WRONG], 7, {GENERATED_TOTAL: 1000.0, REUSED_TOTAL: 500.0})
    assert metrics == pytest.approx(
        {
            "rpo/score": 3 / 6,
            "rpo/generated_tokens": 80 / 6,
            "rpo/prefix_tokens": 12 / 6,
            "rpo/path_length": 92 / 6,
            "rpo/truncated_rate": 1 / 6,
            "rpo/groups_without_variance": 2 / 3,
            "rpo/groups_all_right": 1 / 3,
            "rpo/groups_all_wrong": 1 / 3,
            "rpo/groups_waiting": 0.0,
            "rpo/groups_from_bare_question": 1 / 3,  # an empty prefix that has a path was cut, not fresh
            "rpo/policy_age": 0.0,
            "rpo/policy_age_max": 0.0,
            "rpo/cut": (4 + 4 + 10 + 10) / 4,
            "rpo/cache_age": 5.0,
            GENERATED_TOTAL: 1080.0,
            REUSED_TOTAL: 512.0,
        }
    )


def test_the_age_of_a_token_is_that_of_its_policy_behind_the_one_that_trains():
    """Step 7 trains the policy of 6 steps: 30 tokens are of that one, 10 of the policy two steps before."""
    first, second = MIXED.samples
    samples = (replace(first, parts=(Part(4, 10), Part(6, 20))), replace(second, parts=(Part(6, 10),)))
    metrics = rollout_metrics([replace(MIXED, samples=samples)], 7, {})
    assert (metrics["rpo/policy_age"], metrics["rpo/policy_age_max"]) == (2 * 10 / 40, 2.0)


def test_in_the_first_step_nothing_is_replayed():
    metrics = rollout_metrics([BARE], 1, {})
    assert (metrics["rpo/cut"], metrics["rpo/cache_age"], metrics["rpo/groups_from_bare_question"]) == (0.0, 0.0, 1.0)
    assert (metrics[GENERATED_TOTAL], metrics[REUSED_TOTAL]) == (50, 0)


def test_totals_go_on_from_the_metrics_of_the_step_before():
    first = rollout_metrics([MIXED], 1, {})
    second = rollout_metrics([BARE], 2, first)
    assert (second[GENERATED_TOTAL], second[REUSED_TOTAL]) == (14 + 50, 12)


def test_the_reward_functions_own_numbers_are_averaged_over_the_samples_that_have_them():
    first, second = MIXED.samples
    group = replace(
        MIXED, samples=(replace(first, reward_logs={"steps": 4.0, "tidy": 1.0}), replace(second, reward_logs={"steps": 1.0}))
    )
    metrics = rollout_metrics([group, BARE], 1, {})
    assert {k: v for k, v in metrics.items() if k.startswith("rpo/reward/")} == {
        "rpo/reward/steps": 2.5,
        "rpo/reward/tidy": 1.0,
    }


def test_every_metric_is_a_number():
    assert all(isinstance(v, int | float) for v in rollout_metrics([MIXED], 1, {}).values())


def decision(outcome, path=None, others=()):
    return CacheDecision(path, Visit("q", 1, 0, 0, 3, 2, 1, outcome), others)


def test_cache_metrics_worked_example():
    decisions = [decision("best", OLD), decision("random", OLD), decision("best", OLD), decision("no_rewarded_sample")]
    assert cache_metrics(decisions) == {
        "rpo/cache/replaced": 0.75,
        "rpo/cache/best": 0.5,
        "rpo/cache/no_rewarded_sample": 0.25,
        "rpo/cache/random": 0.25,
    }


def test_the_shares_of_the_outcomes_add_up_to_one():
    shares = cache_metrics([decision("reset"), decision("best", OLD), decision("update_off")])
    assert sum(share for name, share in shares.items() if name != "rpo/cache/replaced") == pytest.approx(1)


def test_a_path_beside_the_one_that_was_kept_does_not_count_as_replaced():
    """Update rule right_and_wrong on a group that is all wrong and one that is mixed; rule every."""
    wrong = replace(OLD, score=0.0, slot=1)
    assert cache_metrics([decision("no_rewarded_sample", None, (wrong,)), decision("best", OLD, (wrong,))]) == {
        "rpo/cache/replaced": 0.5,
        "rpo/cache/best": 0.5,
        "rpo/cache/no_rewarded_sample": 0.5,
    }
    assert cache_metrics([decision("every", OLD, (wrong,))])["rpo/cache/replaced"] == 1


def test_the_console_line_says_what_happened_in_one_line():
    metrics = rollout_metrics([MIXED, BARE, WRONG], 7, {}) | cache_metrics([decision("best", OLD), decision("reset")])
    metrics |= {"timing/rollout": 3.24, "timing/train": 1.0, "timing/cache": 0.01, "timing/step_total": 4.5}
    assert console_line(7, 40, metrics) == (
        "step 7/40  score 0.500  tokens/sample 13 new + 2 reused  no variance 67%  truncated 17%  replaced 50%  "
        "total 80 tokens  4.5 s (rollout 3.2, train 1.0)"
    )
