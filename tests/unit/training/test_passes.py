"""Which forward passes a step makes."""

import pytest

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.training.passes import (
    cannot_share,
    needs_old_log_probs,
    old_log_probs_come_first,
    shares_prefixes,
    sharing_mode,
)


def test_one_update_a_rollout_needs_no_pass_for_old_log_probs(parsed):
    assert not needs_old_log_probs(parsed())
    frozen = parsed(critic__freezing_steps=2, algo__advantage__estimator="gae")
    assert not needs_old_log_probs(frozen)  # the first steps train no policy


def test_kl_as_a_loss_does_not_bring_the_pass_back(parsed):
    assert not needs_old_log_probs(parsed("--algo.kl.use_loss", algo__kl__init_coef=0.01))


@pytest.mark.parametrize(
    "changes",
    [
        {"train__max_epochs": 2},
        {"train__batch_size": 4},
        {"algo__kl__init_coef": 0.01},
        {"ds__lora__dropout": 0.1},
    ],
    ids=["two epochs", "two optimizer steps", "KL in the reward", "LoRA dropout"],
)
def test_what_needs_old_log_probs_before_training_keeps_the_pass(parsed, changes):
    assert needs_old_log_probs(parsed(**changes))


@pytest.mark.parametrize(
    ("flags", "changes", "first"),
    [
        ((), {"train__batch_size": 4}, False),
        ((), {"train__batch_size": 4, "algo__advantage__estimator": "gae"}, True),
        ((), {"train__batch_size": 4, "actor__entropy_coef": 0.01}, True),
        ((), {"algo__kl__init_coef": 0.01}, True),
        (("--algo.kl.use_loss",), {"algo__kl__init_coef": 0.01}, False),
        (("--algo.kl.use_loss",), {"algo__kl__init_coef": 0.01, "train__batch_size": 4}, True),
    ],
)
def test_old_log_probs_come_first_where_rewards_read_them_or_all_samples_are_trained_on(parsed, flags, changes, first):
    assert old_log_probs_come_first(parsed(*flags, **changes)) == first


def test_prefixes_are_shared_unless_something_stands_against_it(parsed):
    assert shares_prefixes(parsed())
    assert not shares_prefixes(parsed(rpo__shared_prefix="off"))


def test_dynamic_batches_are_filled_for_sharing_and_do_not_fall_back(parsed):
    assert sharing_mode(parsed()) == "auto"
    assert sharing_mode(parsed("--train.dynamic_batch_enable")) == "on"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_groups_share_at_every_zero_stage(parsed, stage):
    assert shares_prefixes(parsed(ds__zero_stage=stage))


@pytest.mark.parametrize(
    ("extra", "changes", "reason"),
    [
        ((), {"actor__aux_loss_coef": 0.1}, "router"),
        (("--ds.use_liger_kernel",), {}, "forward"),
        ((), {"ds__tensor_parallel_size": 2, "actor__num_gpus_per_node": 2}, "heads"),
        (("--train.dynamic_batch_enable",), {"algo__advantage__estimator": "gae"}, "critic"),
    ],
)
def test_options_that_stand_against_sharing_are_named_and_refused_when_it_was_insisted_on(parsed, extra, changes, reason):
    assert reason in cannot_share(parsed(*extra, **changes))
    with pytest.raises(UsageError, match="--rpo.shared_prefix on cannot work"):
        parsed(*extra, **changes, rpo__shared_prefix="on")
