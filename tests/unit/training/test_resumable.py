"""The randomness of an optimization round comes from the seed and the steps done, not from what was drawn before."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.zero.offload_states import offload_adam_states

from openrlhf_rpo import upstream
from openrlhf_rpo.errors import Failed
from openrlhf_rpo.run.checkpoints import Checkpoints
from openrlhf_rpo.training import resumable
from openrlhf_rpo.training.average import EMA_FILE, save_ema
from openrlhf_rpo.training.resumable import (
    RPOCriticActor,
    RPOPolicyActor,
    need_finite_weights,
    staged,
    without_buffers,
)
from openrlhf_rpo.training.shared_prefix.actor import SharedActor, share_prefixes
from tests.unit.training.shared_prefix.conftest import batch, group, plain_actor, tiny_model


@pytest.fixture
def draws(monkeypatch):
    """What the round of an actor that has done so many optimizer steps would draw."""
    monkeypatch.setattr(upstream.PolicyModelActor, "fit", lambda self, kl_ctl: torch.rand(3).tolist())

    def run(seed, steps):
        actor = object.__new__(upstream.unwrap(RPOPolicyActor))
        actor.strategy = SimpleNamespace(seed=seed)
        actor.actor = SimpleNamespace(model=SimpleNamespace(global_steps=steps))
        return actor.fit(0.0)

    return run


def test_a_resumed_run_draws_the_same(draws):
    first = draws(42, 5)
    torch.rand(100)
    assert draws(42, 5) == first


def test_other_steps_and_other_seeds_draw_differently(draws):
    assert len({tuple(draws(seed, steps)) for seed in (1, 2, 42) for steps in range(10)}) == 30


def test_the_critic_draws_by_its_own_steps(monkeypatch):
    monkeypatch.setattr(upstream.CriticModelActor, "fit", lambda self: torch.rand(3).tolist())

    def run(steps):
        critic = object.__new__(upstream.unwrap(RPOCriticActor))
        critic.strategy, critic.critic = SimpleNamespace(seed=42), SimpleNamespace(global_steps=steps)
        return critic.fit()

    first = run(5)
    torch.rand(100)
    assert run(5) == first != run(6)


# ── Some rows of a batch ──


def test_some_rows_have_the_log_probs_that_they_have_among_all_and_sharing_is_checked_on_all(monkeypatch):
    checked, check = [], SharedActor.check
    monkeypatch.setattr(SharedActor, "check", lambda self, *batch: checked.append(len(batch[0])) or check(self, *batch))
    sequences, attention_mask, action_mask = batch(group(3, 12, [5, 2, 7, 4]))
    asked = {"sequences": sequences, "action_mask": action_mask, "attention_mask": attention_mask}
    actor = object.__new__(upstream.unwrap(RPOPolicyActor))
    actor.actor, actor.strategy = plain_actor(tiny_model()), SimpleNamespace(ring_attn_group=None)
    whole = actor.forward(**asked)
    share_prefixes(actor.actor, "on", "policy")
    for rows in ([], [2], [0, 3]):
        torch.testing.assert_close(actor.forward(rows=rows, **asked).expand_as(whole[rows]), whole[rows], rtol=0, atol=1e-5)
    assert checked == [4]


# ── Checkpoints ──


def test_checkpoints_are_written_aside_and_the_path_comes_back_after_an_error(tmp_path):
    args = SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path)))
    with pytest.raises(OSError), staged(args, "global_step2"):
        assert args.ckpt.path == str(Checkpoints(str(tmp_path), 1, 1.0).staging / "global_step2")
        raise OSError
    assert args.ckpt.path == str(tmp_path)


def test_both_training_actors_write_their_checkpoints_aside(monkeypatch, tmp_path):
    def save(self, tag, **kwargs):
        written.append((self.strategy.args.ckpt.path, tag))

    written = []
    for ray_class, base in ((RPOPolicyActor, upstream.PolicyModelActor), (RPOCriticActor, upstream.CriticModelActor)):
        monkeypatch.setattr(base, "save_checkpoint", save)
        actor = object.__new__(upstream.unwrap(ray_class))
        actor.strategy = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path))))
        actor.ema_model, actor.save_hf_ckpt = None, False
        actor.actor = actor.critic = model = torch.nn.Linear(1, 1)
        model.optimizer = SimpleNamespace(state={})
        model.model = SimpleNamespace(optimizer=model.optimizer)
        actor.save_checkpoint("global_step2", metric_value=None)
        torch.nn.init.constant_(model.weight, math.nan)
        with pytest.raises(Failed, match="nothing is written"):
            actor.save_checkpoint("global_step3", metric_value=None)
    assert written == [(str(tmp_path / "incoming" / "global_step2"), "global_step2")] * 2


def test_a_checkpoint_of_a_sleeping_policy_has_its_states_and_no_buffers(tmp_path):
    """As DeepSpeed at ZeRO stage 3. torch loads all states to the parameters' device, where a buffer would hold them."""
    engine = SimpleNamespace(optimizer=SimpleNamespace(optimizer=stepped(torch.nn.Parameter(torch.ones(4)))))
    states = engine.optimizer.optimizer.state
    offload_adam_states(engine.optimizer.optimizer, "cpu")
    before = [set(state) for state in states.values()]
    with without_buffers(engine):
        torch.save(engine.optimizer.optimizer.state_dict(), tmp_path / "optimizer.pt")
    assert [set(state) for state in states.values()] == before and "exp_avg_offload_buffer" in before[0]
    saved = torch.load(tmp_path / "optimizer.pt")
    assert set(saved["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


def stepped(parameter):
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("save_hf", [False, True])
def test_an_average_is_rounded_for_a_checkpoint_only_where_it_is_saved_as_a_model(monkeypatch, tmp_path, save_hf):
    """Rounding makes a second copy of it on every GPU."""
    dtypes = []
    monkeypatch.setattr(
        upstream.PolicyModelActor, "save_checkpoint", lambda self, tag: dtypes.append(self.ema_model.weight.dtype)
    )
    actor = object.__new__(upstream.unwrap(RPOPolicyActor))
    actor.strategy = SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path))))
    actor.ema_model, actor.save_hf_ckpt, actor.disable_ds_ckpt = torch.nn.Linear(1, 1), save_hf, True
    actor.actor = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    actor.actor.model = SimpleNamespace(optimizer=SimpleNamespace(state={}))
    actor.save_checkpoint("global_step2")
    assert dtypes == [torch.bfloat16 if save_hf else torch.float32]


def test_a_model_is_exported_only_if_its_weights_are_finite(monkeypatch):
    exported = []
    monkeypatch.setattr(upstream.PolicyModelActor, "save_model", lambda self: exported.append(self.actor.weight.item()))
    actor = object.__new__(upstream.unwrap(RPOPolicyActor))
    actor.ema_model, actor.actor = None, torch.nn.Linear(1, 1)
    for weight in (2.0, math.nan):
        torch.nn.init.constant_(actor.actor.weight, weight)
        with pytest.raises(Failed, match="nothing is written") if math.isnan(weight) else nullcontext():
            actor.save_model()
    assert exported == [2.0]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_resumed_run_goes_on_with_the_average_of_its_checkpoint(monkeypatch, tmp_path, resumed):
    def init(self, strategy):
        self.actor, self.ema_model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1, dtype=torch.bfloat16)
        begun.extend(parameter.float() for parameter in self.ema_model.parameters())
        self.checkpoint_states = {"total_consumed_batch": 2} if resumed else {}

    begun, stored = [], torch.nn.Linear(2, 1)
    folder = tmp_path / "_actor" / "global_step2"
    folder.mkdir(parents=True)
    (folder.parent / "latest").write_text("global_step2\n")
    save_ema(stored, str(folder / EMA_FILE))
    monkeypatch.setattr(upstream.PolicyModelActor, "init_model_from_pretrained", init)
    monkeypatch.setattr(resumable, "works_in_chunks", lambda args: False)
    monkeypatch.setattr(resumable, "shares_prefixes", lambda args: False)
    actor = object.__new__(upstream.unwrap(RPOPolicyActor))
    actor.init_model_from_pretrained(SimpleNamespace(args=SimpleNamespace(ckpt=SimpleNamespace(path=str(tmp_path)))))
    expected = stored.parameters() if resumed else begun
    assert all(torch.equal(a, b) for a, b in zip(actor.ema_model.parameters(), expected, strict=True))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_never_written(wrong):
    model = torch.nn.Linear(3, 2)
    need_finite_weights(model)
    with torch.no_grad():
        model.bias[1] = wrong
    with pytest.raises(Failed, match="the weights bias are not finite: nothing is written"):
        need_finite_weights(model)


def test_of_a_partitioned_parameter_the_part_of_this_process_counts():
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.ds_tensor = torch.tensor([1.0, math.nan])
    with pytest.raises(Failed, match="the weights weight are"):
        need_finite_weights(model)
