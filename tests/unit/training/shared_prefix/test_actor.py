"""When an actor shares prefixes, when it falls back, and what it says."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from openrlhf_rpo.training.shared_prefix import actor as shared_actor
from openrlhf_rpo.training.shared_prefix import attention
from openrlhf_rpo.training.shared_prefix.actor import SharedForward, SharedPrefixError, share_prefixes
from tests.unit.training.shared_prefix.conftest import batch, group, plain_actor, tiny_model

INPUTS = batch(group(3, 12, [5, 2, 7]), group(5, 4, [9, 1], seed=1))


def call(actor, **options):
    return actor(INPUTS[0], INPUTS[2], attention_mask=INPUTS[1], **options)


def sharing(mode="auto", **changes):
    actor = plain_actor(tiny_model(**changes), temperature=0.8)
    plain = call(actor, return_output=True, return_entropy=True)
    share_prefixes(actor, mode, "policy")
    return actor, plain


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_an_actor_that_shares_answers_as_it_did_before(mode, capsys):
    actor, (log_probs, output) = sharing(mode)
    for _ in range(2):
        shared, shared_output = call(actor, return_output=True, return_entropy=True)
        torch.testing.assert_close(shared, log_probs, atol=1e-5, rtol=0)
        torch.testing.assert_close(shared_output.entropy, output.entropy * INPUTS[2], atol=1e-5, rtol=0)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith("Shared prefix, policy: on: 48 instead of 87 tokens in the first batch")


def test_the_check_leaves_training_mode_as_it_was():
    for training in (True, False):
        actor, _ = sharing()
        actor.train(training)
        call(actor)
        assert actor.training is training and actor.model.training is training


UNABLE = {
    "sliding window": ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "sliding_attention"),
    "attention dropout": ({"attention_dropout": 0.1}, "at random"),
    "eager attention": ({"attn_implementation": "eager"}, "eager"),
}


@pytest.mark.parametrize(("changes", "reason"), UNABLE.values(), ids=UNABLE.keys())
def test_a_model_that_cannot_share_keeps_the_plain_path_and_says_why_in_one_line(changes, reason, capsys):
    actor, (log_probs, _) = sharing(**changes)
    actor.eval()
    assert not isinstance(actor.forward, SharedForward)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("Shared prefix, policy: off, every sample runs whole: ") and reason in line


@pytest.mark.parametrize(("changes", "reason"), UNABLE.values(), ids=UNABLE.keys())
def test_whoever_insists_is_told_why_not(changes, reason):
    with pytest.raises(SharedPrefixError, match=reason):
        sharing("on", **changes)


@pytest.fixture
def wrong(monkeypatch):
    """A path that forgets the temperature."""
    right = shared_actor.shared_log_probs
    monkeypatch.setattr(
        shared_actor,
        "shared_log_probs",
        lambda *args, **options: right(*args[:4], temperature=1.0, with_entropy=args[-1], **options),
    )


def test_log_probs_that_differ_on_the_first_batch_turn_sharing_off(wrong, capsys):
    actor, (log_probs, _) = sharing()
    assert torch.equal(call(actor), log_probs)
    assert not isinstance(actor.forward, SharedForward)
    assert "log-probs differ from the plain path by" in capsys.readouterr().out


def deep_actor():
    """In half precision, where rounding is more than the least that is always allowed."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 12, "initializer_range": 0.06}
    actor = plain_actor(tiny_model(**sizes).bfloat16(), temperature=0.7)
    share_prefixes(actor, "auto", "policy")
    return actor


DEEP_INPUTS = batch(group(20, 100, [90, 70]))


@pytest.mark.parametrize(("times_control", "shares"), [(6, True), (0, False)])
def test_what_rounding_does_in_a_deep_model_of_half_precision_is_allowed(monkeypatch, times_control, shares):
    """Of 0.016 nats on average, which are added here: how much it is depends on the processor, on some it is nothing."""
    exact = shared_actor.SharedActor.values

    def rounded(self, *rows, share=True):
        found = exact(self, *rows, share=share)
        return found + 0.02 * torch.randn(found.shape, generator=torch.Generator().manual_seed(int(share)))

    monkeypatch.setattr(shared_actor.SharedActor, "values", rounded)
    monkeypatch.setattr(shared_actor, "TIMES_CONTROL", times_control)
    actor = deep_actor()
    actor(DEEP_INPUTS[0], DEEP_INPUTS[2], attention_mask=DEEP_INPUTS[1])
    assert isinstance(actor.forward, SharedForward) is shares


def test_a_token_too_many_in_sight_is_more_than_rounding(monkeypatch):
    right = attention._padding

    def next_one_too(*args):
        pad, unpad, mask = right(*args)
        n = len(mask)
        return pad, unpad, torch.cat([mask[:, :-n], torch.ones(n, n, dtype=torch.bool).tril(1)], 1)

    monkeypatch.setattr(attention, "_padding", next_one_too)
    actor = deep_actor()
    actor(DEEP_INPUTS[0], DEEP_INPUTS[2], attention_mask=DEEP_INPUTS[1])
    assert not isinstance(actor.forward, SharedForward)


def test_log_probs_that_differ_stop_a_run_that_insists(wrong):
    actor, _ = sharing("on")
    with pytest.raises(SharedPrefixError, match="log-probs differ"):
        call(actor)


def test_the_check_runs_no_more_whole_rows_than_sharing_affords(monkeypatch):
    """Two groups of 6 rows, 18 + 6 x 2 tokens shared, rows of 20: 60 shared tokens afford 3 whole rows."""
    actor, _ = sharing()
    rows = []
    plain = actor.forward.plain
    monkeypatch.setattr(actor.forward, "plain", lambda ids, *rest: rows.append(len(ids)) or plain(ids, *rest))
    ids, attention, actions = batch(group(8, 10, [2] * 6), group(8, 10, [2] * 6, seed=1))
    actor(ids, actions, attention_mask=attention)
    assert rows == [3]


def test_a_process_that_is_out_of_memory_does_not_go_on_alone(monkeypatch):
    """The others may be in a collective of the shared pass, which whole rows would never join."""
    actor, _ = sharing()

    def full(*_args, **_options):
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(shared_actor, "shared_log_probs", full)
    with pytest.raises(torch.OutOfMemoryError):
        call(actor)


def test_a_first_batch_that_fails_turns_sharing_off(capsys):
    actor, _ = sharing()
    ids, attention, actions = (x.flip(1) for x in INPUTS)  # padded on the left
    actor(ids, actions, attention_mask=attention)
    assert "padded on the right only" in capsys.readouterr().out


SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}
NO_DROPOUT = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}
SERVED = {
    "llama": SMALL,
    "qwen3": SMALL,
    "mistral": SMALL | {"sliding_window": None},
    "qwen3_moe": SMALL
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "output_router_logits": True},
    "gpt2": {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4} | NO_DROPOUT,  # learned positions
}
NOT_SERVED = {
    "mistral": (SMALL | {"sliding_window": 6}, "sliding window"),
    "gpt2": ({"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4}, "at random"),
    "gemma2": (SMALL, "sliding_attention"),
    "mamba": ({"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}, "linear_attention"),
}


def architecture(name, values):
    config = AutoConfig.for_model(name, bos_token_id=None, eos_token_id=None, pad_token_id=None, **values)
    torch.manual_seed(0)
    return plain_actor(AutoModelForCausalLM.from_config(config).float())


@pytest.mark.parametrize(("name", "values"), SERVED.items(), ids=SERVED.keys())
def test_architectures_of_transformers_registry_share(name, values):
    actor = architecture(name, values)
    plain = call(actor)
    share_prefixes(actor, "on", "policy")
    torch.testing.assert_close(call(actor), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "values", "reason"), [(n, *v) for n, v in NOT_SERVED.items()], ids=NOT_SERVED.keys())
def test_architectures_whose_layers_see_more_than_the_prefix_run_whole(name, values, reason, capsys):
    share_prefixes(architecture(name, values), "auto", "policy")
    assert reason in capsys.readouterr().out
