"""Drafts change no token: the same noise gives the same draws, whatever was drafted, and they follow the policy."""

import itertools
import math
import random

import pytest
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from openrlhf_rpo.rollout.drafts.sampler import CoupledSampler

VOCABULARY, LENGTH = 5, 4
FIRST = 0  # what stands before each sequence
# The logits behind each token: a model of one token's memory.
POLICY = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))


def metadata(generators, temperature, top_p=None, log_probs=0):
    """For as many requests as there are temperatures."""
    n = len(temperature)
    none = torch.zeros(n)
    return SamplingMetadata(
        temperature=torch.tensor(temperature),
        all_greedy=not any(temperature),
        all_random=all(temperature),
        top_p=None if top_p is None else torch.full((n,), top_p),
        top_k=None,
        generators=dict(enumerate(generators)),
        max_num_logprobs=log_probs,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def seeded(n, seed):
    return [torch.Generator().manual_seed(seed + i) for i in range(n)]


def token_by_token(sampler, n, seed, temperature, top_p):
    """vLLM without drafts: the sequences, and their log-probs."""
    generators = seeded(n, seed)
    sequences, log_probs = torch.full((n, 1), FIRST), torch.empty(n, 0)
    for _ in range(LENGTH):
        drawn = sampler(POLICY[sequences[:, -1]].clone(), metadata(generators, temperature, top_p))
        sequences = torch.cat([sequences, drawn.sampled_token_ids.long()], 1)
        log_probs = torch.cat([log_probs, drawn.logprobs_tensors.logprobs[:, :1]], 1)
    return sequences[:, 1:], log_probs


def behind_drafts(sampler, n, seed, temperature, top_p, draft):
    """The same with ``draft(row, tokens so far)`` before each pass, as vLLM's model runner goes about it."""
    generators, found = seeded(n, seed), [[FIRST] for _ in range(n)]
    log_probs = [[] for _ in range(n)]
    coupled = CoupledSampler(sampler)
    while going := [row for row in range(n) if len(found[row]) <= LENGTH]:
        drafts = [draft(row, found[row]) for row in going]
        positions = [token for row, ids in zip(going, drafts, strict=True) for token in (found[row][-1], *ids)]
        drawn = coupled(
            SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu")),
            None,
            POLICY[torch.tensor(positions)].clone(),
            metadata([generators[row] for row in going], [temperature[row] for row in going], top_p),
        )
        kept, reported = coupled.parse_output(drawn.sampled_token_ids, VOCABULARY, logprobs_tensors=drawn.logprobs_tensors)
        places = itertools.chain.from_iterable([row] * len(tokens) for row, tokens in zip(going, kept, strict=True))
        for place, value in zip(places, reported.logprobs[:, 0].tolist(), strict=True):
            log_probs[place].append(value)
        for row, tokens in zip(going, kept, strict=True):
            found[row] += tokens
    return [tokens[1 : LENGTH + 1] for tokens in found], [values[:LENGTH] for values in log_probs]


def guesses(seed):
    """Drafts of 0 to 3 tokens that know nothing."""
    random_ = random.Random(seed)
    return lambda row, tokens: random_.choices(range(VOCABULARY), k=random_.randrange(4))


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("top_p", [None, 0.7])
@pytest.mark.parametrize("temperature", [[1.0] * 40, [0.0] * 40, [0.0, 0.5, 1.0, 1.7] * 10], ids=["1", "greedy", "mixed"])
def test_a_request_draws_the_same_tokens_with_drafts_and_without(mode, top_p, temperature):
    sampler, n = Sampler(mode), len(temperature)
    alone, reported = token_by_token(sampler, n, 0, temperature, top_p)
    for seed in range(5):
        tokens, log_probs = behind_drafts(sampler, n, 0, temperature, top_p, guesses(seed))
        assert tokens == alone.tolist()
        assert log_probs == reported.tolist()


def test_a_draft_of_what_is_drawn_is_accepted_whole():
    sampler, temperature = Sampler(), [1.0] * 20
    alone, _ = token_by_token(sampler, 20, 3, temperature, None)
    passes = itertools.count()

    def known(row, tokens):
        next(passes)
        return alone[row, len(tokens) - 1 : LENGTH - 1].tolist()

    tokens, _ = behind_drafts(sampler, 20, 3, temperature, None, known)
    assert tokens == alone.tolist() and next(passes) == 20  # one pass a request


def test_whole_sequences_have_the_policys_probabilities():
    n = 20_000
    tokens, _ = behind_drafts(Sampler(), n, 10_000, [1.0] * n, None, guesses(7))
    p = POLICY.double().softmax(-1)
    every = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
    expected = [float(torch.tensor([p[a, b] for a, b in itertools.pairwise((FIRST, *one))]).prod()) * n for one in every]
    counted = dict.fromkeys(every, 0)
    for one in tokens:
        counted[tuple(one)] += 1
    seen = [one for one, count in zip(every, expected, strict=True) if count >= 5]
    rest = n - sum(counted[one] for one in seen)
    wanted = dict(zip(every, expected, strict=True))
    pairs = [(counted[one], wanted[one]) for one in seen] + [(rest, n - sum(wanted[one] for one in seen))]
    statistic = sum((found - should) ** 2 / should for found, should in pairs)
    degrees = len(pairs) - 1
    assert statistic < degrees + 4 * math.sqrt(2 * degrees)  # 4 standard deviations
