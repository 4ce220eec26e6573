"""The processes of every model: batches for all of them, whole rings, and devices that they share."""

import pytest

from openrlhf_rpo.errors import UsageError

COLOCATED = {"train__colocate_all": True, "algo__kl__init_coef": 0.01, "ref__num_gpus_per_node": 1}


def test_a_training_batch_must_divide_into_micro_batches_of_all_actors(parse):
    with pytest.raises(UsageError, match="batch_size 32 is not a multiple of --train.micro_batch_size 6 x 1"):
        parse(train__micro_batch_size=6)
    with pytest.raises(UsageError, match="--train.micro_batch_size 8 x 3 actor processes"):
        parse(actor__num_gpus_per_node=3)
    parse(actor__num_gpus_per_node=4)


def test_actors_of_one_ring_count_as_one(parse):
    """8 actors in rings of 4 are 2 replicas, and 32 is a multiple of 8 x 2."""
    eight = {"actor__num_gpus_per_node": 8, "rollout__micro_batch_size": 4}
    parse(**eight, ds__ring_attn_size=4)
    with pytest.raises(UsageError, match="x 8 actor"):
        parse(**eight)


def test_every_process_gets_as_many_samples_as_the_others(parse):
    """32 samples in micro-batches of 12 for two processes: 12 + 8 and 12, unless groups are dealt one by one."""
    changes = {"actor__num_gpus_per_node": 2, "rollout__micro_batch_size": 12}
    parse(**changes)
    with pytest.raises(UsageError, match=r"32 samples are not a multiple of --rollout.micro_batch_size 12 x 2"):
        parse(**changes, rpo__shared_prefix="off")
    parse(**changes | {"rollout__micro_batch_size": 8}, rpo__shared_prefix="off")


def test_a_critic_of_another_size_gets_even_batches_too(parse):
    critic = {"algo__advantage__estimator": "gae", "critic__model_name_or_path": "model", "actor__num_gpus_per_node": 1}
    shape = {"rollout__batch_size": 6, "rollout__n_samples_per_prompt": 4, "train__batch_size": 24}
    sizes = {"rollout__micro_batch_size": 8, "train__micro_batch_size": 4}
    whole = {"rpo__shared_prefix": "off"}
    with pytest.raises(UsageError, match="24 samples are not a multiple of --rollout.micro_batch_size 8 x 2 critic"):
        parse(**critic, **shape, **sizes, **whole, critic__num_gpus_per_node=2)
    parse(**critic, **shape, **sizes, critic__num_gpus_per_node=1)


@pytest.mark.parametrize(
    ("actors", "critics", "fit"), [(3, 2, False), (4, 6, False), (2, 4, False), (4, 2, True), (3, 3, True)]
)
def test_where_groups_are_dealt_one_by_one_the_critics_divide_the_actors(parse, actors, critics, fit):
    """3 actors would give 2 critics 50 and 46 of 96 samples, and 4 would leave the last of 6 without any."""
    sizes = {"rollout__batch_size": 16, "rollout__n_samples_per_prompt": 6, "train__batch_size": 96}
    micro = {"rollout__micro_batch_size": 6, "train__micro_batch_size": 2, "algo__advantage__estimator": "gae"}
    changes = {**sizes, **micro, "actor__num_gpus_per_node": actors, "critic__num_gpus_per_node": critics}
    if fit:
        parse(**changes)
        return
    with pytest.raises(UsageError, match=f"makes {critics} critic processes, which must divide the actor's, {actors} "):
        parse(**changes)


def test_deepspeed_wants_the_training_batch_to_divide_among_those_that_only_run_forward(parse):
    shape = {"algo__kl__init_coef": 0.01, "actor__num_gpus_per_node": 4, "rollout__micro_batch_size": 2}
    with pytest.raises(UsageError, match="not a multiple of --train.micro_batch_size 4 x 3 ref processes"):
        parse(**shape, train__micro_batch_size=4, ref__num_gpus_per_node=3)
    parse(**shape, train__micro_batch_size=4, ref__num_gpus_per_node=2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ds__tensor_parallel_size": 2, "actor__num_gpus_per_node": 1}, "actor.num_gpus_per_node is 1, not a multiple of"),
        ({"ds__ring_attn_size": 2, "actor__num_gpus_per_node": 3}, "ring_attn_size x --ds.tensor_parallel_size, 2"),
        ({"algo__kl__init_coef": 0.01}, "ref.num_gpus_per_node is 8, and a step's 32 samples make 4 batches of"),
    ],
)
def test_every_process_of_a_model_has_its_place_and_its_batch(parse, changes, reason):
    with pytest.raises(UsageError, match=reason):
        parse(**changes)
    parse(algo__kl__init_coef=0.01, ref__num_gpus_per_node=4)


def test_no_process_that_runs_forward_is_left_without_a_batch(parse):
    """6 batches for 4 processes are dealt as 2, 2, 2 and none."""
    shape = {"algo__kl__init_coef": 0.01, "rollout__micro_batch_size": 6, "train__micro_batch_size": 2}
    with pytest.raises(UsageError, match="make 6 batches of --rollout.micro_batch_size 6, dealt 2 at a time: each"):
        parse(**shape, ref__num_gpus_per_node=4)
    parse(**shape, ref__num_gpus_per_node=2)


def test_at_zero_stage_3_processes_that_run_forward_have_equally_many_batches(parse):
    """48 samples in batches of 3 for 3 processes: 6, 6 and 4. Every forward pass gathers the weights from all of them."""
    shape = {"algo__kl__init_coef": 0.01, "rollout__batch_size": 12, "rollout__micro_batch_size": 3}
    shape |= {"train__batch_size": 48, "train__micro_batch_size": 1, "ref__num_gpus_per_node": 3}
    parse(**shape, ds__zero_stage=2)
    with pytest.raises(UsageError, match="at --ds.zero_stage 3 each process needs equally many"):
        parse(**shape, ds__zero_stage=3)
    parse(**shape | {"ref__num_gpus_per_node": 4}, ds__zero_stage=3)


def test_with_dynamic_micro_batches_the_processes_that_run_forward_divide_the_actors(parse):
    four = {"train__dynamic_batch_enable": True, "algo__kl__init_coef": 0.01, "actor__num_gpus_per_node": 4}
    for processes in (3, 8):
        with pytest.raises(UsageError, match=f"ref.num_gpus_per_node is {processes}: .* it must divide the actor's, 4, for"):
            parse(**four, ref__num_gpus_per_node=processes)
    parse(**four, ref__num_gpus_per_node=2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ref__num_gpus_per_node": 8}, "--ref.num_gpus_per_node 8 must be those of --actor"),
        ({"vllm__num_engines": 2}, "tensor_parallel_size is 2, but the actor has 1"),
        ({"algo__advantage__estimator": "gae"}, "--critic.num_gpus_per_node is 8, more than the 1"),
        (
            {"rpo__reward__functions": None, "reward__model_name_or_path": "rm"},
            "--reward.num_gpus_per_node is 8, more than the 1",
        ),
    ],
)
def test_groups_that_share_devices_must_fit_each_other(parse, changes, reason):
    parse(**COLOCATED)
    with pytest.raises(UsageError, match=reason):
        parse(**COLOCATED | changes)


def test_a_critic_that_shares_with_the_reward_model_must_be_of_its_size(parse):
    changes = {"train__colocate_critic_reward": True, "algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 2}
    changes["actor__num_gpus_per_node"] = 2
    with pytest.raises(UsageError, match="--critic.num_gpus_per_node 2 must be those of --reward"):
        parse(**changes)
    parse(**changes, reward__num_gpus_per_node=2)
