"""Seeded tokens on a CPU: vLLM's sampler with our noise."""

import torch
import vllm.v1.sample.ops.topk_topp_sampler as vllm_sampler

from openrlhf_rpo.platform.engine_worker import seeded_noise


def generators(*seeds: int) -> dict[int, torch.Generator]:
    return {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds)}


def test_a_row_has_the_noise_of_its_own_generator_whatever_runs_beside_it():
    alone = seeded_noise(torch.empty(1, 100), generators(7))
    together = seeded_noise(torch.empty(3, 100), {1: torch.Generator().manual_seed(7)})
    assert torch.equal(together[1], alone[0]) and len(together.unique()) == 300


def test_the_noise_is_exponential_down_to_its_rarest_values():
    noise = seeded_noise(torch.empty(100, 50_000), generators(*range(100))).flatten()
    found = -torch.expm1(-noise[:200_000].sort().values)  # the distribution function of each
    assert (found - torch.linspace(0, 1, len(found))).abs().max() < 1.95 / len(found) ** 0.5  # Kolmogorov, 0.1 %
    for rare in (1e-5, 1e-6):
        expected = rare * len(noise)
        assert abs((noise < rare).sum() - expected) < 4 * expected**0.5
    assert noise.min() > 0 and noise.isfinite().all()


def test_vllms_sampler_draws_seeded_requests_from_their_probabilities_and_draws_no_noise_of_its_own(monkeypatch):
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.045, 0.005])
    monkeypatch.setattr(torch.Tensor, "exponential_", None)
    sampler = vllm_sampler.TopKTopPSampler("processed_logprobs")
    n, logits = 20_000, probabilities.log()
    tokens, log_probs = sampler(logits.repeat(n, 1), generators(*range(n)), None, None)
    assert ((tokens.bincount(minlength=5) - n * probabilities) ** 2 / (n * probabilities)).sum() < 18.5  # chi-square, 0.1 %
    torch.testing.assert_close(log_probs[0], logits)
    again, _ = sampler(logits.repeat(2, 1), generators(0, 1), None, None)
    assert torch.equal(again, tokens[:2])


def test_requests_without_a_seed_are_drawn_as_well():
    logits = torch.tensor([0.5, 0.5]).log().repeat(1000, 1)
    torch.manual_seed(0)
    tokens, _ = vllm_sampler.TopKTopPSampler("processed_logprobs")(logits, generators(3), None, None)
    assert 400 < tokens.sum() < 600
