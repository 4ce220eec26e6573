"""The arithmetic of memory, held against sums by hand."""

from dataclasses import replace

import pytest

from openrlhf_rpo.launch.doctor import memory
from openrlhf_rpo.launch.doctor.memory import ModelShape

QWEN_1_5B = ModelShape(1_543_714_304, 28, 1536, 2, 128, 151_936)


@pytest.fixture
def args(parse):
    """Eight GPUs, bfloat16, ZeRO stage 2, one path of 4,096 tokens in a micro-batch."""

    def build(**changes):
        usual = {
            "actor__num_gpus_per_node": 8,
            "data__max_len": 4096,
            "train__micro_batch_size": 1,
            "rollout__micro_batch_size": 4,
            "vllm__num_engines": 8,
        }
        return parse(**usual | changes)

    return build


def bytes_of(terms):
    return {term.name: term.bytes for term in terms}


def test_weights_gradients_and_optimizer_follow_the_stage(args):
    n = QWEN_1_5B.parameters
    for stage, (weights, gradients, optimizer) in {0: (1, 1, 1), 1: (1, 1, 8), 2: (1, 8, 8), 3: (8, 8, 8)}.items():
        terms = bytes_of(memory.training_terms(QWEN_1_5B, args(ds__zero_stage=stage)))
        assert terms["weights"] == 2 * n // weights
        assert terms["gradients"] == 2 * n // gradients
        assert terms["optimizer"] == 12 * n // optimizer


def test_what_shares_the_device_is_counted(args):
    """Below stage 3 DeepSpeed moves no frozen model to main memory."""
    n, others = QWEN_1_5B.parameters, {"reference": 100, "reward model": 200, "critic": 300}
    found = bytes_of(memory.beside_terms(QWEN_1_5B, others, args(train__enable_ema=True, ref__offload=True)))
    assert found["moving average"] == 4 * n
    assert (found["weights of the reference"], found["weights of the reward model"]) == (200, 400)
    assert found["optimizer of the critic"] == 300 * 12 // 8 and found["gradients of the critic"] == 300 * 2 // 8
    asleep = bytes_of(memory.beside_terms(QWEN_1_5B, others, args(ds__enable_sleep=True)))
    assert asleep["weights of the critic"] == 600 and "optimizer of the critic" not in asleep
    stage_3 = bytes_of(memory.beside_terms(QWEN_1_5B, others, args(ds__zero_stage=3, ref__offload=True)))
    assert stage_3["weights of the reward model"] == 400 // 8 and "weights of the reference" not in stage_3


def test_engines_that_wake_find_the_rest_of_training_there(args):
    options = args(ds__enable_sleep=True)
    terms = memory.training_terms(QWEN_1_5B, options) + memory.beside_terms(QWEN_1_5B, {"reference": 100}, options)
    assert memory.while_generating(terms, options) == 2 * QWEN_1_5B.parameters + 200
    options = args()
    states = 2 * QWEN_1_5B.parameters // 8 + 12 * QWEN_1_5B.parameters // 8
    assert memory.while_generating(terms, options) == 2 * QWEN_1_5B.parameters + 200 + states


def test_a_ring_divides_a_micro_batch(args):
    assert memory.micro_batch_tokens(args(ds__ring_attn_size=2)) == 2048


def test_an_optimizer_in_host_memory_takes_none_of_the_device(args):
    assert bytes_of(memory.training_terms(QWEN_1_5B, args(ds__adam_offload=True)))["optimizer"] == 0


def test_checkpointing_keeps_one_layer_and_an_input_of_each(args):
    whole = bytes_of(memory.training_terms(QWEN_1_5B, args()))["activations"]
    kept = bytes_of(memory.training_terms(QWEN_1_5B, args(actor__gradient_checkpointing_enable=True)))["activations"]
    assert whole == 4096 * 1536 * 28 * 34
    assert kept == 4096 * 1536 * (28 * 2 + 34)


@pytest.mark.parametrize(("stage", "optimizer"), [(0, 8), (2, 12 / 8)])
def test_float32_has_a_second_copy_of_the_weights_only_where_zero_divides_them(args, stage, optimizer):
    """``deepspeed/runtime/zero/stage_1_and_2.py`` clones each process's share."""
    options = args(ds__zero_stage=stage)
    options.ds.param_dtype = "fp32"
    terms = bytes_of(memory.training_terms(QWEN_1_5B, options))
    assert (terms["weights"], terms["optimizer"]) == (4 * QWEN_1_5B.parameters, int(optimizer * QWEN_1_5B.parameters))
    assert memory.checkpoint_bytes(QWEN_1_5B, 0, options) == 16 * QWEN_1_5B.parameters


def test_a_checkpoint_holds_a_critic_and_a_moving_average(args):
    n = QWEN_1_5B.parameters
    assert memory.checkpoint_bytes(QWEN_1_5B, 100, args()) == 14 * n + 14 * 100
    assert memory.checkpoint_bytes(QWEN_1_5B, 100, args(train__enable_ema=True)) == 18 * n + 14 * 100


def test_of_an_adapter_alone_there_are_gradients_and_an_optimizer_and_all_weights_are_saved(args):
    shape = replace(QWEN_1_5B, adapter=1000)
    terms = bytes_of(memory.training_terms(shape, args()))
    assert terms["weights"] == 2 * (shape.parameters + 1000)
    assert (terms["gradients"], terms["optimizer"]) == (2 * 1000 // 8, 12 * 1000 // 8)
    assert memory.checkpoint_bytes(shape, 0, args()) == 2 * (shape.parameters + 1000) + 12 * 1000


def test_keys_and_values_of_a_token_are_28_kib(args):
    assert memory.kv_bytes_per_token(QWEN_1_5B, 2) == 2 * 28 * 2 * 128 * 2 == 28_672
    engine = bytes_of(memory.engine_terms(QWEN_1_5B, args(vllm__tensor_parallel_size=2)))
    assert engine["weights"] == QWEN_1_5B.parameters
    assert engine["KV cache of one longest path"] == 4096 * 28_672 // 2
    engine = bytes_of(memory.engine_terms(QWEN_1_5B, args(vllm__tensor_parallel_size=4)))  # it has two KV heads
    assert engine["KV cache of one longest path"] == 4096 * 28_672 // 2


def test_logits_are_all_there_at_once_only_where_openrlhf_computes_them(args):
    usual = {
        "rollout__n_samples_per_prompt": 4,
        "train__micro_batch_size": 4,
        "train__batch_size": 64,
        "rollout__batch_size": 16,
    }
    shared = bytes_of(memory.training_terms(QWEN_1_5B, args(**usual)))["logits"]
    alone = bytes_of(memory.training_terms(QWEN_1_5B, args(**usual, rpo__shared_prefix="off")))["logits"]
    whole = bytes_of(memory.training_terms(QWEN_1_5B, args(**usual, ds__use_liger_kernel=True)))["logits"]
    assert whole == 4 * 4096 * 151_936 * 16
    assert shared == alone == ((441 + 1536) * 2 + 1536 * 4) * 151_936


def test_the_sum_is_written_out(args):
    text = memory.written(memory.training_terms(QWEN_1_5B, args()))
    assert "weights: 1,543,714,304 x 2 = 2.9 GiB" in text
    assert "optimizer: 1,543,714,304 x 12 / 8 = 2.2 GiB" in text
    assert text.splitlines()[-1].startswith("together ")
