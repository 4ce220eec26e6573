"""The optimizer loop with upstream's own code in it: one process on gloo, a plain optimizer in place of DeepSpeed."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from openrlhf_rpo.training.shared_prefix.actor import share_prefixes
from openrlhf_rpo.training.trainers import RPOActorTrainer
from openrlhf_rpo.upstream import Experience, platform
from tests.unit.training.shared_prefix.conftest import batch, group, plain_actor, tiny_model

platform.prepare()

INPUTS = batch(group(3, 12, [5, 2, 7, 4]), group(5, 4, [9, 1, 3, 6], seed=1))


class Strategy:
    """What ``ActorPPOTrainer`` asks of DeepSpeed's strategy, with the scaling by accumulated micro-batches."""

    ring_attn_group = None
    is_rank_0 = staticmethod(lambda: False)
    all_reduce = staticmethod(lambda data, op="mean": data)

    def __init__(self, args):
        self.args = args
        self.accumulated_gradient = args.train.batch_size // args.train.micro_batch_size
        self.ds_device_mesh = {"dp": SimpleNamespace(get_group=lambda: None)}
        self.steps = 0

    def backward(self, loss, model, optimizer):
        (loss / self.accumulated_gradient).backward()

    def optimizer_step(self, optimizer, model, scheduler, name):
        self.steps += 1

    def get_grad_norm(self, model):
        return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()


@pytest.fixture(autouse=True)
def one_process(tmp_path):
    torch.compiler.set_stance("force_eager")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.compiler.set_stance("default")


def experience(old_log_probs):
    sequences, attention, actions = INPUTS
    generator = torch.Generator().manual_seed(3)
    return Experience(
        sequences=sequences,
        attention_mask=attention,
        action_mask=actions,
        action_log_probs=old_log_probs,
        base_action_log_probs=-4 * actions.float(),
        rollout_log_probs=-4.1 * actions.float(),
        advantages=torch.randn(8, 1, generator=generator).expand(actions.shape).contiguous(),
        prompts=["a"] * 4 + ["b"] * 4,
        response_length=actions.sum(-1),
        total_length=attention.sum(-1).float(),
        index=list(range(8)),
        info={"reward": torch.zeros(8)},
    )


def train(args, old_log_probs=None):
    """Gradient and status of one round; without old log-probs they are not a number, as our experience maker gives them."""
    actor = plain_actor(tiny_model(), temperature=0.9)
    unknown = torch.full(INPUTS[2].shape, torch.nan)
    if args.rpo.shared_prefix != "off":
        share_prefixes(actor, "on", "policy")
    scheduler = SimpleNamespace(get_last_lr=lambda: [1.0])
    trainer = RPOActorTrainer(
        Strategy(args), actor, None, None, scheduler, micro_train_batch_size=args.train.micro_batch_size,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer.replay_buffer.append(experience(unknown if old_log_probs is None else old_log_probs.clone()))
    torch.manual_seed(0)
    status = trainer.ppo_train(args.algo.kl.init_coef)
    return torch.cat([p.grad.flatten() for p in actor.parameters()]), status


def old_log_probs():
    with torch.no_grad():
        return plain_actor(tiny_model(), temperature=0.9)(INPUTS[0], INPUTS[2], attention_mask=INPUTS[1])


OPTIONS = {
    "the defaults": ((), {}),
    "sequence mean": ((), {"actor__loss_agg_mode": "seq-mean-token-mean"}),
    "gspo": ((), {"actor__policy_loss_type": "gspo"}),
    "dual clip": ((), {"actor__dual_clip": 3.0}),
    "KL as a loss": (("--algo.kl.use_loss",), {"algo__kl__init_coef": 0.1, "algo__kl__estimator": "k3"}),
    "unbiased KL": (("--algo.kl.use_loss", "--algo.kl.unbiased_gradient"), {"algo__kl__init_coef": 0.1}),
    "entropy": ((), {"actor__entropy_coef": 0.1}),
    "half groups": ((), {"train__micro_batch_size": 2}),
    "all groups at once": ((), {"train__micro_batch_size": 8}),
}


@pytest.mark.parametrize(("flags", "changes"), OPTIONS.values(), ids=OPTIONS.keys())
def test_sharing_and_no_pass_for_old_log_probs_change_neither_gradient_nor_figures(parsed, flags, changes):
    """Held against upstream's buffer, forward pass and old log-probs that were computed before training."""
    plain_args = parsed(*flags, rpo__shared_prefix="off", **changes)
    reference = copy.deepcopy(plain_args)
    reference.ds.lora.dropout = 0.1  # keeps the pass
    wanted, wanted_status = train(reference, old_log_probs())
    for args in (plain_args, parsed(*flags, rpo__shared_prefix="auto", **changes)):
        gradient, status = train(args)
        assert (gradient - wanted).norm() < 1e-5 * wanted.norm()
        for name in ("actor_grad_norm", "ppo_kl", "ppo_clip_ratio", "reward"):
            assert status[name] == pytest.approx(wanted_status[name], rel=1e-4, abs=1e-6), name


def test_the_training_step_measures_how_far_the_rollout_was_off(parsed):
    _, status = train(parsed())
    gap = (old_log_probs() + 4.1).abs() * INPUTS[2]
    assert status["rollout_log_prob_gap"] == pytest.approx((gap.sum(-1) / INPUTS[2].sum(-1)).mean().item(), rel=1e-4)
