"""Micro-batches of groups, as upstream's optimizer loop asks for them; one process on gloo where ranks are counted."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from openrlhf_rpo.training.shared_prefix.replay_buffer import GroupReplayBuffer
from openrlhf_rpo.upstream import Experience


def experience(prompt, prefix, response, n):
    """``n`` samples of one group."""
    length = prefix + response
    ids = torch.full((n, length), ord(prompt))
    ids[:, prefix:] = 1000 + torch.arange(n)[:, None]
    mask = torch.zeros(n, length - 1, dtype=torch.long)
    mask[:, prefix - 1 :] = 1
    return Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=mask,
        prompts=[prompt] * n,
        index=list(range(n)),
        total_length=torch.full((n,), float(length)),
    )


def buffer(micro=4, dynamic=False):
    made = GroupReplayBuffer(micro, dynamic_batch=dynamic)
    for prompt, prefix, response in [("a", 80, 5), ("b", 10, 20), ("c", 40, 10), ("d", 30, 20)]:
        made.append(experience(prompt, prefix, response, 4))
    return made


def loader(made, shuffle=False):
    return DataLoader(made, batch_size=made.sample_batch_size, shuffle=shuffle, drop_last=True, collate_fn=made.collate_fn)


@pytest.mark.parametrize(("micro", "groups_each"), [(4, 1), (8, 2), (2, 1), (16, 4)])
def test_a_micro_batch_holds_neighbours_and_has_the_size_that_was_asked_for(micro, groups_each):
    torch.manual_seed(0)
    batches = list(loader(buffer(micro), shuffle=True))
    assert len(batches) == 16 // micro
    assert sorted(p for b in batches for p in b.prompts) == sorted("abcd" * 4)
    for b in batches:
        assert len(b.sequences) == micro and len(set(b.prompts)) == groups_each


def test_micro_batches_come_in_another_order_after_another_draw():
    orders = set()
    for seed in range(6):
        torch.manual_seed(seed)
        orders.add(tuple(b.prompts[0] for b in loader(buffer(), shuffle=True)))
    assert len(orders) > 1


@pytest.fixture
def strategy(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    train = SimpleNamespace(batch_size=8, max_tokens_per_gpu=150)
    yield SimpleNamespace(
        args=SimpleNamespace(train=train),
        ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: None)},
        all_reduce=lambda tensor, op: tensor,
    )
    dist.destroy_process_group()


def test_dynamic_batches_hold_whole_groups_within_the_budget_and_one_step_after_the_other(strategy):
    """Costs 100, 90 | 80, 110 tokens, 150 a micro-batch: a group each, two optimizer steps of two groups."""
    made = buffer(dynamic=True)
    made.setup_dynamic_batch(strategy)
    prompts = [b.prompts for b in loader(made)]
    assert sorted(map(tuple, prompts[:2])) == [("a",) * 4, ("b",) * 4]
    assert sorted(map(tuple, prompts[2:])) == [("c",) * 4, ("d",) * 4]
    assert made.dynamic_optimizer_step == [0, 1, 0, 1]
    assert made.dynamic_sample_loss_scale == [0.5] * 4
    assert made.dynamic_global_batch_size == [8.0] * 4
    assert made.dynamic_batch_num_tokens == [100.0, 100.0, 120.0, 120.0]


def test_a_budget_for_whole_rows_would_need_more_micro_batches(strategy):
    """190 tokens hold a step's two groups with their prefixes once; as whole rows those are 460."""
    strategy.args.train.max_tokens_per_gpu = 190
    made = buffer(dynamic=True)
    made.setup_dynamic_batch(strategy)
    assert made.dynamic_optimizer_step == [1, 1]


def test_samples_that_training_leaves_out_take_no_room_in_a_dynamic_batch(strategy):
    """Costs 1, 90 | 80, 110 tokens instead of 100, 90 | ..., 150 a micro-batch; the loss divides by the tokens of all."""
    made = buffer(dynamic=True)
    for item in made.items:
        item.advantages = item.action_mask * float(item.prompts != ["a"])
    made.skips = True
    made.setup_dynamic_batch(strategy)
    assert made.dynamic_optimizer_step == [1, 0, 1]
    assert sorted(next(iter(loader(made))).prompts) == ["a"] * 4 + ["b"] * 4
    assert made.dynamic_batch_num_tokens == [100.0, 120.0, 120.0]
