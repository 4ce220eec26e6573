"""The shipped models are what they claim to be.

Two questions: do the claims in ``figures.json`` lie in the bands the levels were built for, and does a fresh measurement, on
other held-out questions, agree with the claims within 3.5 standard errors (about one false alarm in 2,000 comparisons)?
"""

import functools
import json
import math
import statistics

import pytest
import torch

from lab.testbed import LEVELS, measure, model_dir
from lab.testbed.task import answer, draw_split

QUESTIONS, SAMPLES, SEED, MARGIN = 96, 4, 20261121, 3.5
BANDS = {
    "main": {
        "pass@1": (0.3, 0.6),
        "greedy": (0.5, 0.85),
        "pass@8": (0.85, 1.0),
        "lucky": (0.0, 0.02),
        "tokens_mean": (150, 300),
        "tokens_max": (0, 600),
    },
    "hard": {"pass@1": (0.05, 0.2), "pass@64": (0.6, 1.0), "tokens_mean": (200, 400), "tokens_max": (0, 600)},
}


@functools.cache
def claims(level):
    return json.loads((model_dir(level) / "figures.json").read_text())


@functools.cache
def drawn(level, temperature):
    """Groups of samples, one a held-out question."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, tokenizer = measure.load(model_dir(level))
    group = SAMPLES if temperature else 1
    questions = [q for q in draw_split(level, QUESTIONS, SEED, heldout=True) for _ in range(group)]
    samples = measure.sample(model, tokenizer, questions, temperature, SEED)
    torch.set_num_threads(threads)
    return [samples[i : i + group] for i in range(0, len(samples), group)]


def assert_agrees(rates, claim, n_claimed):
    """The mean of per-question rates is the claim, within the margin for both samplings."""
    own = statistics.variance(rates) / len(rates)
    theirs = statistics.variance(rates) / n_claimed
    assert statistics.mean(rates) == pytest.approx(claim, abs=MARGIN * math.sqrt(own + theirs))


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_claims_lie_in_the_bands_of_the_level(level):
    for name, (low, high) in BANDS[level].items():
        assert low <= claims(level)[name] <= high, name


@pytest.mark.release
@pytest.mark.parametrize("level", sorted(LEVELS))
def test_pass_at_1_is_as_claimed(level):
    rates = [sum(s.right for s in group) / SAMPLES for group in drawn(level, 1.0)]
    assert_agrees(rates, claims(level)["pass@1"], claims(level)["questions"])


@pytest.mark.release
@pytest.mark.parametrize("level", sorted(LEVELS))
def test_greedy_accuracy_is_as_claimed(level):
    rates = [float(s.right) for (s,) in drawn(level, 0.0)]
    assert_agrees(rates, claims(level)["greedy"], claims(level)["questions"])


@pytest.mark.release
@pytest.mark.parametrize("level", sorted(LEVELS))
def test_length_is_as_claimed(level):
    lengths = [statistics.mean(s.tokens for s in group) for group in drawn(level, 1.0)]
    assert_agrees(lengths, claims(level)["tokens_mean"], claims(level)["questions"])


@pytest.mark.release
@pytest.mark.parametrize("level", sorted(LEVELS))
def test_answers_are_boxed_ended_and_not_lucky(level):
    samples = [s for group in drawn(level, 1.0) for s in group]
    assert sum(s.ended for s in samples) >= 0.97 * len(samples)
    assert sum("\\boxed{" in s.text for s in samples) >= 0.97 * len(samples)
    n_right = sum(s.right for s in samples)
    # 2 % of the right ones is claimed; 3.5 standard errors of a Poisson count on top
    assert sum(s.lucky for s in samples) <= 0.02 * n_right + MARGIN * math.sqrt(max(1.0, 0.02 * n_right))


def test_right_samples_hold_the_label_and_seed_decides_the_draw():
    model, tokenizer = measure.load(model_dir("main"))
    questions = draw_split("main", 8, SEED, heldout=True)
    first, again = (measure.sample(model, tokenizer, questions, 1.0, seed=1) for _ in range(2))
    other = measure.sample(model, tokenizer, questions, 1.0, seed=2)
    assert first == again != other
    assert all(s.right == s.text.endswith(f"\\boxed{{{answer(s.question)}}}") for s in first if s.ended)


def test_batching_and_padding_do_not_change_greedy_text():
    model, tokenizer = measure.load(model_dir("main"))
    questions = draw_split("main", 6, SEED, heldout=True)
    together = measure.sample(model, tokenizer, questions, 0.0, seed=0, max_new_tokens=60)
    alone = measure.sample(model, tokenizer, questions, 0.0, seed=0, max_new_tokens=60, batch_size=1)
    assert [s.text for s in together] == [s.text for s in alone]


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_weights_are_small_and_padding_is_not_the_end(level):
    model, tokenizer = measure.load(model_dir(level))
    assert (model_dir(level) / "model.safetensors").stat().st_size < 3e6
    assert tokenizer.pad_token_id != tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.decode(tokenizer.encode("f97+53?\n\\boxed{0357}")) == "f97+53?\n\\boxed{0357}"


def test_pass_at_k_worked_by_hand():
    assert measure.pass_at_k(4, 1, 1) == pytest.approx(1 / 4)
    assert measure.pass_at_k(4, 2, 2) == pytest.approx(1 - 1 / 6)  # of six pairs one holds no right sample
    assert measure.pass_at_k(4, 0, 4) == 0.0
