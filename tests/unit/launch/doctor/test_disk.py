"""The largest size of checkpoints, model and cache, and the parameters that it counts."""

import pytest

from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.doctor import machine, storage
from openrlhf_rpo.launch.doctor.findings import FAIL
from openrlhf_rpo.launch.doctor.memory import ModelShape
from openrlhf_rpo.launch.doctor.storage import Stored, by_disk, stored
from openrlhf_rpo.launch.doctor.training import critic_parameters, model_shape

CACHE = 32 * 768 * 4.5  # 16 questions, 2 steps of 8
CRITIC = {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 1}


def test_too_little_disk_fails_with_the_sum(tmp_path):
    finding = machine.disk(str(tmp_path / "not" / "there"), 1 << 60, "1 EiB is needed")
    assert finding.level == FAIL and "1 EiB is needed" in finding.message and str(tmp_path) in finding.message
    assert not (tmp_path / "not").exists()


@pytest.fixture
def needed(parse, usual):
    """Bytes and their sum: 1,000 parameters, paths of 768 tokens, groups of 4, 3 checkpoints, a critic of 100 if any."""

    def sum_up(**changes):
        args = parse(**usual | {"ckpt__save_steps": 1, "ckpt__max_num": 3} | changes)
        args.ds.param_dtype = "bf16"
        shape, critic = ModelShape(1000, 1, 1, 1, 1, 1), 100 if args.critic.model_name_or_path else 0
        parts = stored(shape, critic, args, RPOConfig.from_namespace(args.rpo), 16, 2)
        return sum(part.n_bytes for part in parts), ", ".join(part.words for part in parts)

    return sum_up


def test_what_is_on_one_disk_is_compared_with_its_space(monkeypatch):
    monkeypatch.setattr(storage, "_disk_of", {"/shared/c": 1, "/shared/m": 1, "/local": 2}.__getitem__)
    parts = [
        Stored("/shared/c", 3 << 30, "checkpoints"),
        Stored("/local", 2 << 30, "cache"),
        Stored("/shared/m", 1 << 30, "model"),
    ]
    assert by_disk(parts) == [
        Stored("/shared/c", 4 << 30, "at most 4.0 GiB are needed: checkpoints, model"),
        Stored("/local", 2 << 30, "at most 2.0 GiB are needed: cache"),
    ]


def test_a_cache_is_where_its_url_says(parse, usual, tmp_path):
    def folders(url):
        args = parse(**usual, rpo__cache__url=url)
        return [
            part.folder
            for part in stored(ModelShape(1000, 1, 1, 1, 1, 1), 0, args, RPOConfig.from_namespace(args.rpo), 16, 2)
        ]

    args = parse(**usual)
    assert folders(f"sqlite:///{tmp_path}/local/a.db") == [args.ckpt.path, args.ckpt.output_dir, str(tmp_path / "local")]
    assert len(folders("postgresql+psycopg://u@host/db")) == 2


def test_the_disk_holds_every_stored_path_and_a_copy_of_the_cache_in_every_checkpoint(needed):
    n_bytes, why = needed()
    assert n_bytes == 4 * (14_000 + CACHE) + 2_000 + CACHE
    assert "4 checkpoints (--ckpt.max_num, the one that is being written)" in why
    assert "32 paths x 768 tokens x 4.5 bytes" in why
    assert "80 paths" in needed(rpo__method="verify")[1]  # every sample


def test_the_disk_holds_a_new_checkpoint_beside_those_that_are_kept(needed, usual):
    evaluated = {"eval__dataset": usual["data__prompt_dataset"], "eval__steps": 1}
    for changes, kept, which in (
        (evaluated, 5, "--ckpt.max_num, the best one, the one that is being written"),
        (evaluated | {"ckpt__save_steps": -1}, 2, "the best one, the one that is being written"),
        (evaluated | {"ckpt__best_metric_key": "none"}, 4, "--ckpt.max_num, the one that is being written"),
        (evaluated | {"ckpt__save_steps": -1, "eval__steps": -1}, 0, "none is written"),
        (evaluated | {"ckpt__disable_ds": True}, 0, "none is written"),
        ({"ckpt__save_steps": -1}, 0, "none is written"),
        ({"ckpt__max_num": 0}, 2, "--ckpt.max_num, the one that is being written"),  # the newest one always stays
    ):
        n_bytes, why = needed(**changes)
        assert n_bytes == kept * (14_000 + CACHE) + 2_000 + CACHE
        assert f"{kept} checkpoints ({which})" in why


def test_the_disk_holds_the_critic_the_moving_average_and_every_exported_model(needed, usual):
    evaluated = {"eval__dataset": usual["data__prompt_dataset"], "eval__steps": 1}
    assert needed(**CRITIC)[0] == 4 * (15_400 + CACHE) + 2_000 + CACHE
    assert needed(**CRITIC, critic__save_value_network=True)[0] == 4 * (15_400 + CACHE) + 2_200 + CACHE
    assert needed(train__enable_ema=True)[0] == 4 * (18_000 + CACHE) + 2_000 + CACHE
    n_bytes, why = needed(ckpt__save_hf=True, **evaluated)
    assert n_bytes == 5 * (14_000 + CACHE) + 4 * 2_000 + 2_000 + CACHE
    assert "4 models of --ckpt.save_hf, which nothing removes" in why
    assert needed(ckpt__save_hf=True, ckpt__disable_ds=True)[0] == 2 * 2_000 + 2_000 + CACHE


def test_a_critic_has_one_output_in_place_of_a_vocabulary(parse, usual):
    """The testbed's model ties its logits to its embeddings: one output of 128 weights more."""

    assert critic_parameters(parse(**usual)) == 0
    assert critic_parameters(parse(**usual, **CRITIC)) == 598_144 + 128


def test_an_adapter_has_two_thin_matrices_at_every_linear_layer(parse, usual):
    import torch
    from transformers import AutoModelForCausalLM

    assert model_shape(parse(**usual)).adapter == 0
    shape = model_shape(parse(**usual, ds__lora__rank=8))
    model = AutoModelForCausalLM.from_pretrained(usual["actor__model_name_or_path"])
    linear = [m for m in model.model.modules() if isinstance(m, torch.nn.Linear)]
    assert len(linear) == 7 * shape.layers
    assert shape.adapter == 8 * sum(m.in_features + m.out_features for m in linear)
    with pytest.raises(UsageError, match="Target modules .*nowhere.* not found in the base model"):
        model_shape(parse(**usual, ds__lora__rank=8, ds__lora__target_modules="nowhere"))
