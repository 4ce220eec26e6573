"""The model of a step's seconds: by hand, against figures that others published, and what must hold of any figures."""

import random
from dataclasses import replace

import numpy as np
import pytest

from lab.scale import plan
from openrlhf_rpo.algo.methods import RPO, Off, Paper, Verify
from openrlhf_rpo.launch.doctor import seconds
from openrlhf_rpo.launch.doctor.memory import ModelShape
from openrlhf_rpo.launch.doctor.plan import _Training, _work, _written
from openrlhf_rpo.launch.doctor.seconds import Cluster, Drafts, Rates, Work, abreast, phases

ONE = Cluster(engines=1, ranks=1, imbalance=1.0)


def work(new, prefix=0, scored=0, prompt=10, common=True):
    new = np.array(new, float)
    return Work(prompt, np.zeros_like(new) + scored, np.zeros_like(new) + prefix, new, common)


@pytest.mark.parametrize(
    ("at_once", "running", "behind"),
    [
        (2, [2, 1], [12, 6]),
        (1, [1, 1, 1], [5, 6, 7]),  # the second waits for the first
        (9, [2, 1], [12, 6]),
    ],
)
def test_a_pass_gives_every_running_sequence_a_token(at_once, running, behind):
    found = abreast(np.array([2, 1]), np.array([5.0, 7.0]), at_once)
    assert [column.tolist() for column in found] == [running, behind]


def test_no_token_is_lost_whatever_runs_at_once():
    draw = random.Random(0)
    for _ in range(50):
        new = np.array([draw.randint(1, 30) for _ in range(draw.randint(1, 20))])
        before = np.array([draw.randint(0, 50) for _ in new], float)
        at_once = draw.randint(1, 25)
        running, behind = abreast(new, before, at_once)
        assert running.sum() == new.sum() and 1 <= running.min() <= running.max() <= at_once
        assert behind.sum() == pytest.approx(sum(b * n + n * (n - 1) / 2 for n, b in zip(new, before, strict=True)))


def test_a_step_by_hand():
    """Two groups of two behind 10 tokens of prompt and a common prefix of 5, on one engine and one rank."""
    step = work([[4, 2], [1, 1]], prefix=5)
    assert phases(step, Rates(a_pass=1), ONE)["rollout"] == 4
    assert phases(step, Rates(sequence=1), ONE)["rollout"] == 8
    assert phases(step, Rates(behind=1), ONE)["rollout"] == (15 + 16 + 17 + 18) + (15 + 16) + 15 + 15
    assert phases(step, Rates(read=1), ONE)["rollout"] == 2 * 15
    assert phases(step, Rates(train=1), ONE)["train"] == 2 * 15 + 8
    assert phases(step, Rates(forward=1), ONE, forwards=2)["log_probs"] == 2 * 38
    assert phases(step, Rates(driver=1), ONE)["rest"] == 4 * 15 + 8
    ends = Rates(update=1, start=2, rest=3)
    assert phases(step, ends, ONE) == {"verify": 0, "rollout": 2, "log_probs": 0, "train": 1, "rest": 3}


def test_a_step_whose_next_batch_is_rolled_out_beside_it_takes_as_long_as_the_slower_of_the_two():
    step = work([[4, 2], [1, 1]], prefix=5)
    rates = Rates(a_pass=1, train=1)
    once = _Training(forwards=0, passes=1, updates=1, shares=True, ahead=False)
    assert _written(rates, ONE, once, step, None).startswith("42 s (rollout 4.0, train 38.0), ")
    ahead = replace(once, ahead=True)
    assert _written(rates, ONE, ahead, step, None).startswith("38 s (rollout 4.0, train 38.0, rollout and training side")
    whole = replace(once, shares=False, passes=2)
    assert _written(rates, ONE, whole, step, None).startswith("140 s (rollout 4.0, train 136.0), ")  # 2 x (4 x 15 + 8)


def test_epochs_critic_and_reward_model_are_passes_and_optimizer_steps(parse):
    """Two batches of 16 of a step's 32 samples, three epochs; the old log-probs are needed from the second update on."""
    made = _Training.of(parse(train__batch_size=16, train__max_epochs=3))
    assert (made.forwards, made.passes, made.updates, made.shares) == (1, 3, 6, True)
    critic = {"algo__advantage__estimator": "gae", "train__colocate_all": True, "critic__num_gpus_per_node": 1}
    made = _Training.of(parse(**critic))
    assert (made.forwards, made.passes, made.updates) == (1, 2, 2)


def test_what_was_read_to_verify_it_is_not_read_again():
    step = work([[4, 2], [1, 1]], prefix=5, scored=8, common=False)
    found = phases(step, Rates(read=1), ONE)
    assert (found["verify"], found["rollout"]) == (4 * 8 + 2 * 10, 0)
    assert phases(replace(step, read=True), Rates(read=1), ONE)["rollout"] == 8
    assert phases(step, Rates(train=1), ONE)["train"] == 2 * 10 + 4 * 5 + 8  # prompts are shared, prefixes are not


def test_engines_share_the_groups_and_ranks_the_tokens():
    step, rates = work([[4, 2], [1, 1], [1, 1]]), Rates(a_pass=1, sequence=1, train=1)
    found = phases(step, rates, Cluster(engines=3, ranks=2, imbalance=1.5))
    assert found["rollout"] == 4 + 6
    assert found["train"] == pytest.approx((3 * 10 + 10) / 2 * 1.5)


def test_drafts_shorten_a_rollout_by_what_is_accepted():
    step, rates = work([[8, 8]]), Rates(a_pass=1, sequence=0.1, draft=0.1)
    assert phases(step, rates, ONE, drafts=Drafts(4, 1))["rollout"] == pytest.approx(8 / 2 * (1 + 0.2 * 5))


def test_auto_is_never_slower_than_drafts_everywhere_or_nowhere():
    draw = np.random.default_rng(0)
    for _ in range(50):
        step = work(draw.integers(1, 200, (4, 4)))
        rates = Rates(a_pass=draw.random(), sequence=draw.random(), behind=draw.random() / 100)
        k, accepted = 4, 2 * draw.random()
        auto = phases(step, rates, ONE, drafts=Drafts(k, accepted, auto=True))["rollout"]
        without, everywhere = (phases(step, rates, ONE, drafts=d)["rollout"] for d in (None, Drafts(k, accepted)))
        assert auto <= min(without, everywhere) * (1 + 1e-12)


def test_what_a_method_makes_of_a_step():
    lengths = seconds.answers(400, 8, 4096, 1000)
    assert 900 < lengths.mean() < 1000 and lengths.max() == 4096 and lengths.min() >= 1
    kept = seconds.verified(lengths, 10, 0.75)
    replayed = kept.scored.any(1)
    assert replayed.mean() == 0.75 and (kept.prefix + kept.new == lengths).all() and (kept.new >= 1).all()
    assert (kept.prefix / lengths)[replayed].mean() == pytest.approx(seconds.KEPT, abs=0.02)
    cut = seconds.continued(lengths, 10, 0.75, 0.5)
    gone_on = cut.prefix.any(1)
    assert gone_on.mean() == 0.75 and (cut.prefix == cut.prefix[:, :1]).all()
    assert (cut.prefix[gone_on, 0] >= lengths[gone_on, 0] / 2 - 1).all() and (cut.new[~gone_on] == lengths[~gone_on]).all()


def test_a_method_that_continues_no_path_generates_every_answer():
    lengths = seconds.answers(16, 8, 4096, 1000)
    assert (_work(Off(), lengths, 10).new == lengths).all() and not _work(Off(), lengths, 10).prefix.any()
    for method in (RPO(), Verify(), Paper()):
        assert _work(method, lengths, 10).new.sum() < 0.9 * lengths.sum()


@pytest.mark.parametrize(
    ("shape", "published"),
    [(ModelShape(494_032_768, 24, 896, 2, 64, 151_936), 311.55), (plan.SHAPES["1.5B"], 183.33)],
)
def test_tokens_a_second_of_one_sequence_on_an_a100(shape, published):
    assert 1 / seconds.of_gpus(shape, "A100", 1, 1024, False, 1).a_pass == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "published"),
    [
        (ModelShape(6_667_247_616, 32, 4096, 32, 128, 50_368), 8611),
        (ModelShape(2_657_080_320, 32, 2560, 20, 128, 50_368), 20_964),
        (ModelShape(1_320_144_896, 24, 2048, 16, 128, 50_368), 38_535),
    ],
)
def test_tokens_a_second_that_an_h100_trains_on(shape, published):
    assert 1 / seconds.of_gpus(shape, "H100", 1, 4096, False, 8).train == pytest.approx(published, rel=0.15)


def test_a_published_step_of_grpo():
    assert sum(plan.nemo().values()) == pytest.approx(plan.PUBLISHED, rel=0.2)


def test_keys_and_values_bound_the_sequences_at_a_time():
    shape = plan.SHAPES["7B"]
    assert seconds.sequences(shape, 72e9, 1000) == 989  # (72e9 - 15.2e9) / (57,344 x 1000)
    assert seconds.sequences(shape, 72e9, 100) == seconds.SEQUENCES
    assert seconds.sequences(shape, 1e9, 1000) == 1


def test_rates_are_found_again_in_the_seconds_that_they_gave():
    rates = Rates(a_pass=0.01, sequence=0.001, read=1e-4, train=2e-4, update=0.3, start=0.2, rest=0.1)
    draw = np.random.default_rng(0)
    steps = []
    for i in range(12):
        new = draw.integers(1, 60, (8, 4))
        step = work(new, prefix=5 * (i % 2), scored=9 * (i % 2), common=False)
        steps.append((step, None, plan.measured_phases(step, rates, ONE)))
    found = plan.fitted(steps, ONE)
    for step, _, taken in steps:
        said = plan.measured_phases(step, found, ONE)
        assert said["rollout"] == pytest.approx(taken["rollout"], rel=0.05)
        assert (said["train"], said["rest"]) == (pytest.approx(taken["train"]), pytest.approx(taken["rest"]))


def test_a_rate_that_would_be_negative_is_zero():
    assert plan.not_negative(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0])) == [2.0, 0.0]
