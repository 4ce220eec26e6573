"""The CUDA kernels: the gradients of whole rows, and one compilation for all lengths."""

from importlib.util import find_spec

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import Qwen2Config, Qwen2ForCausalLM

from openrlhf_rpo.training.shared_prefix.attention import enable
from openrlhf_rpo.training.shared_prefix.forward import shared_log_probs

pytestmark = pytest.mark.gpu

KERNELS = [
    pytest.param("sdpa", torch.float32, 1e-4),
    pytest.param("flex", torch.float32, 1e-3),
    pytest.param("flex", torch.bfloat16, 5e-2),
    pytest.param(
        "flash", torch.bfloat16, 5e-2, marks=pytest.mark.skipif(find_spec("flash_attn") is None, reason="no flash-attn")
    ),
]


def model(dtype):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=997,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    return Qwen2ForCausalLM(config).to("cuda", dtype)


def two_groups(prefix, lengths):
    generator = torch.Generator().manual_seed(prefix)
    ids = torch.zeros(2 * len(lengths), prefix + max(lengths), dtype=torch.long)
    attention, actions = torch.zeros_like(ids), torch.zeros_like(ids)
    for row in range(len(ids)):
        head = torch.randint(997, (prefix,), generator=torch.Generator().manual_seed(row // len(lengths)))
        n = lengths[row % len(lengths)]
        ids[row, : prefix + n] = torch.cat([head, torch.randint(997, (n,), generator=generator)])
        attention[row, : prefix + n] = actions[row, prefix : prefix + n] = 1
    return ids.cuda(), attention.cuda(), actions[:, 1:].cuda()


def gradient(net, ids, attention, actions):
    net.zero_grad()
    log_probs = torch.log_softmax(net(ids, attention_mask=attention).logits.float()[:, :-1], -1)
    (log_probs.gather(-1, ids[:, 1:, None])[..., 0] * actions).sum().backward()
    return torch.cat([p.grad.flatten().float() for p in net.parameters()])


@pytest.mark.parametrize(("kernel", "dtype", "tolerance"), KERNELS)
def test_a_group_in_one_row_gives_the_gradients_of_its_samples(kernel, dtype, tolerance):
    net, inputs = model(dtype), two_groups(300, [20, 71, 5])
    enable("sdpa", kernel)
    wanted = gradient(net, *inputs)
    net.zero_grad()
    shared_log_probs(net, *inputs).log_probs.sum().backward()
    shared = torch.cat([p.grad.flatten().float() for p in net.parameters()])
    assert (shared - wanted).norm() < tolerance * wanted.norm()


def test_flex_attention_compiles_once_for_all_lengths():
    net = model(torch.bfloat16)
    enable("sdpa", "flex")
    seen = []
    for prefix, lengths in [(300, [20, 71, 5]), (900, [33, 40, 8]), (1700, [90, 10, 6]), (2500, [7, 70, 300])]:
        shared_log_probs(net, *two_groups(prefix, lengths)).log_probs.sum().backward()
        seen.append(counters["stats"]["unique_graphs"])
    assert seen[1:] == [seen[1]] * 3
