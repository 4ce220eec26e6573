"""The optimizer loop with upstream's own code in it: one process on gloo, a plain optimizer in place of DeepSpeed."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from openrlhf_rpo.run.phases import PhaseClock
from openrlhf_rpo.trainer import _RPOTrainer
from openrlhf_rpo.training.shared_prefix.actor import SharedActor, share_prefixes
from openrlhf_rpo.training.teaching import deal_again, teaches, teaching_part
from openrlhf_rpo.training.trainers import RPOActorTrainer, RPOCriticTrainer
from openrlhf_rpo.upstream import CriticPPOTrainer, Experience, platform
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
        model.model.micro_steps += 1

    def get_grad_norm(self, model):
        return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()


def as_an_engine(model, accumulated):
    """What DeepSpeed's engine says of the place in an optimizer step."""
    model.micro_steps = 0
    model.gradient_accumulation_steps = lambda: accumulated
    model.is_gradient_accumulation_boundary = lambda: (model.micro_steps + 1) % accumulated == 0


@pytest.fixture(autouse=True)
def one_process(tmp_path):
    torch.compiler.set_stance("force_eager")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.compiler.set_stance("default")


def experience(old_log_probs, silent=()):
    """Eight samples of two groups; ``silent`` ones have no advantage."""
    sequences, attention, actions = INPUTS
    generator = torch.Generator().manual_seed(3)
    advantages = torch.randn(8, 1, generator=generator).expand(actions.shape).contiguous()
    advantages[list(silent)] = 0
    return Experience(
        sequences=sequences,
        attention_mask=attention,
        action_mask=actions,
        action_log_probs=old_log_probs,
        base_action_log_probs=-4 * actions.float(),
        rollout_log_probs=-4.1 * actions.float(),
        advantages=advantages,
        prompts=["a"] * 4 + ["b"] * 4,
        response_length=actions.sum(-1),
        total_length=attention.sum(-1).float(),
        index=list(range(8)),
        info={"reward": torch.arange(8.0)},
    )


def train(args, old_log_probs=None, silent=(), skips=True, ran=None):
    """Gradient and status of one round; without old log-probs they are not a number, as our experience maker gives them.

    ``ran``: a list that gets the number of samples of every forward pass with gradients.
    """
    actor = plain_actor(tiny_model(), temperature=0.9)
    as_an_engine(actor.model, args.train.batch_size // args.train.micro_batch_size)
    unknown = torch.full(INPUTS[2].shape, torch.nan)
    if args.rpo.shared_prefix != "off":
        share_prefixes(actor, "on", "policy")
    scheduler = SimpleNamespace(get_last_lr=lambda: [1.0])
    trainer = RPOActorTrainer(
        Strategy(args), actor, None, None, scheduler, micro_train_batch_size=args.train.micro_batch_size,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer.skips &= skips
    trainer.replay_buffer.append(experience(unknown if old_log_probs is None else old_log_probs.clone(), silent))
    if ran is not None:
        actor.register_forward_pre_hook(lambda _, inputs: ran.append(len(inputs[0])))
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
    "one sample a question": (
        (),
        {"rollout__batch_size": 8, "rollout__n_samples_per_prompt": 1, "algo__advantage__estimator": "reinforce"},
    ),
    "one at a time": ((), {"train__micro_batch_size": 1}),
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


# ── Samples that do not teach ──

SILENT = {"none": (), "one": (1,), "a group": (0, 1, 2, 3), "most": (0, 1, 3, 4, 6, 7), "all": range(8)}


@pytest.mark.parametrize("shared_prefix", ["off", "auto"])
@pytest.mark.parametrize(
    "name", ["the defaults", "sequence mean", "gspo", "dual clip", "one at a time", "half groups", "all groups at once"]
)
@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT.keys())
def test_leaving_out_samples_without_an_advantage_changes_neither_gradient_nor_figures(parsed, name, silent, shared_prefix):
    flags, changes = OPTIONS[name]
    args = parsed(*flags, rpo__shared_prefix=shared_prefix, **changes)
    wanted, wanted_status = train(args, silent=silent, skips=False)
    gradient, status = train(args, silent=silent)
    assert (gradient - wanted).norm() <= 1e-5 * wanted.norm()
    for figure in ("actor_grad_norm", "policy_loss", "reward", "response_length", "total_length"):
        assert status[figure] == pytest.approx(wanted_status[figure], rel=1e-4, abs=1e-6), figure
    assert status["reward"] == 3.5  # of all


@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT.keys())
def test_rows_that_are_left_out_need_no_old_log_probs(parsed, silent):
    """In a micro-batch of none that teach one of them runs, and its own log-probs are the old ones."""
    args = parsed(train__batch_size=4, train__micro_batch_size=2, algo__advantage__is_correction_level="token")
    old = old_log_probs()
    wanted, wanted_status = train(args, old, silent)
    old[list(silent)] = torch.nan
    gradient, status = train(args, old, silent)
    assert torch.equal(gradient, wanted) and gradient.isfinite().all()
    assert status == pytest.approx(wanted_status, rel=1e-5, abs=1e-6) and status["vllm_kl"] != 0


def test_samples_that_do_not_teach_are_not_run(parsed):
    def ran(silent, *flags, **changes):
        found = []
        train(parsed(*flags, **changes), silent=silent, ran=found)
        return found

    off = {"rpo__shared_prefix": "off"}
    assert sorted(ran(SILENT["most"], **off)) == [1, 2]  # both that teach were drawn for one micro-batch
    assert ran(SILENT["none"], **off) == [4, 4]
    assert ran(SILENT["all"], **off) == [1, 1]  # each process takes part in every backward pass
    assert ran(SILENT["all"]) == [1, 1]
    singles = {"train__micro_batch_size": 1, **off}
    assert ran(SILENT["all"], **singles) == [1, 1]  # the first and the last of eight
    assert ran(SILENT["most"], **singles) == [1] * 3
    assert len(ran(SILENT["none"], **singles)) == 8
    assert ran(SILENT["all"], train__batch_size=4, **singles) == [1] * 4  # of two optimizer steps
    assert sum(ran(SILENT["most"], actor__entropy_coef=0.1, **off)) == 8  # entropy teaches, too
    kl = {"algo__kl__init_coef": 0.1, "algo__kl__estimator": "k3"}
    assert sum(ran(SILENT["most"], "--algo.kl.use_loss", **kl, **off)) == 8


def test_the_comparison_on_the_first_batch_takes_no_more_tokens_than_training(parsed, monkeypatch):
    """Micro-batches that are filled to the limit with what is trained hold many times as much."""
    asked, check = [], SharedActor.check
    monkeypatch.setattr(SharedActor, "check", lambda self, *rows: asked.append(int(rows[2].sum())) or check(self, *rows))
    lengths = INPUTS[1].sum(-1)
    for silent in SILENT.values():
        train(parsed(train__micro_batch_size=8), silent=silent)
        trained = int(lengths[[i for i in range(8) if i not in silent]].sum())
        assert 0 < asked[-1] <= max(trained, int(lengths[:2].sum()))
    assert len(asked) == len(SILENT) and asked[0] < int(lengths.sum())


def test_old_log_probs_and_dynamic_micro_batches_without_sharing_end_a_step(parsed):
    """Upstream deals the samples anew, with lists for figures."""
    args = parsed("--train.dynamic_batch_enable", rpo__shared_prefix="off", algo__kl__init_coef=0.01)
    dealt, made, asked = [], experience(old_log_probs()), []
    run = SimpleNamespace(
        args=args,
        clock=PhaseClock(),
        experience_maker=SimpleNamespace(fill_in_old_log_probs=lambda experiences: asked.extend(experiences) or 0.5),
        _compute_rollout_stats=lambda experiences: {"rollout/num_samples": 8.0},
        actor_model_group=SimpleNamespace(async_run_method_batch=lambda **asked: dealt.extend(asked["experience"]) or []),
        critic_model_group=None,
        ppo_train=lambda step: {"policy_loss": 0.1},
        train_policy=lambda dealt, step: _RPOTrainer.train_policy(run, dealt, step),
    )
    status = _RPOTrainer.train_on(run, [made], 0)
    assert sum(len(micro.sequences) for micro in dealt) == 8
    assert asked == [made] and status["rollout_log_prob_gap"] == 0.5


def test_the_part_that_teaches_has_no_padding_of_others():
    lengths = INPUTS[1].sum(-1).tolist()
    longest = lengths.index(max(lengths))
    whole = experience(-4 * INPUTS[2].float(), silent=[0, 1, 2])
    found, n = teaching_part(whole), max(lengths[3:])
    assert longest < 3 and n < lengths[longest]
    assert found.sequences.shape == (5, n) and found.action_mask.shape == found.advantages.shape == (5, n - 1)
    assert torch.equal(found.sequences, whole.sequences[3:, :n])
    assert torch.equal(torch.tensor(found.info["reward"]), torch.arange(3.0, 8.0))
    assert found.prompts == ["a"] + ["b"] * 4


@pytest.mark.parametrize(("measured", "tokens"), [(64, 9), (2, 6)])
def test_where_nothing_teaches_a_beginning_runs(monkeypatch, measured, tokens):
    """A prompt of four tokens, and five of response."""
    monkeypatch.setattr("openrlhf_rpo.training.teaching.MEASURED", measured)
    made = Experience(
        sequences=torch.arange(9)[None],
        attention_mask=torch.ones(1, 9, dtype=torch.long),
        action_mask=torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]),
        action_log_probs=torch.full((1, 8), torch.nan),
        rollout_log_probs=torch.arange(8.0)[None],
        advantages=torch.zeros(1, 8),
        prompts=["a"],
        info={"reward": torch.tensor([1.0])},
    )
    part = teaching_part(made)
    assert torch.equal(part.sequences, made.sequences[:, :tokens]) and part.attention_mask.shape == (1, tokens)
    assert torch.equal(part.rollout_log_probs, made.rollout_log_probs[:, : tokens - 1])
    assert part.action_mask.sum() == tokens - 4 and part.advantages.shape == part.action_log_probs.shape == (1, tokens - 1)


def test_ranks_get_samples_by_what_training_computes_of_them(parsed):
    """The group that teaches nothing goes with one that does on neither rank, but beside the other silent one."""
    args = parsed(actor__num_gpus_per_node=2, train__batch_size=16, rollout__batch_size=4)
    first, second = experience(-4 * INPUTS[2].float(), silent=range(4)), experience(-4 * INPUTS[2].float(), silent=range(4))
    second.index = list(range(8, 16))
    second.info = {"reward": torch.arange(8.0, 16.0)}
    assert deal_again([first], parsed()) == [first]  # one rank
    dealt = deal_again([first, second], args)
    assert [len(micro.sequences) for micro in dealt] == [4] * 4
    silent = [not teaches(micro).any() for micro in dealt]
    assert silent[:2] == silent[2:] and sum(silent) == 2  # the n-th of both ranks
    assert sorted(float(x) for micro in dealt for x in micro.info["reward"]) == list(range(16))


def test_the_norm_of_a_critics_gradient_is_that_of_the_last_optimizer_step(monkeypatch):
    """Upstream's mean over micro-batches counts the step before, which a resumed run does not know."""
    trainer = object.__new__(RPOCriticTrainer)
    trainer.strategy, trainer.critic = SimpleNamespace(get_grad_norm=lambda model: {"critic": 3.0}[model]), "critic"
    monkeypatch.setattr(CriticPPOTrainer, "ppo_train", lambda self: {"critic_loss": 1.0, "critic_grad_norm": 1.5})
    assert trainer.ppo_train() == {"critic_loss": 1.0, "critic_grad_norm": 3.0}
    monkeypatch.setattr(CriticPPOTrainer, "ppo_train", lambda self: {})  # no samples
    assert trainer.ppo_train() == {}
