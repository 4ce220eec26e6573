"""The device of a run, and the options that depend on it."""

import os

import pytest

from lab.testbed import model_dir
from openrlhf_rpo import platform
from openrlhf_rpo.cli import train_rpo_ray
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch import cluster, preflight
from openrlhf_rpo.launch.cluster import adapt_options

platform.prepare()  # before OpenRLHF is imported


@pytest.mark.parametrize("gpus", [0.0, 8.0])
def test_a_driver_without_a_gpu_takes_the_device_of_its_cluster(parse, fake_ray, monkeypatch, gpus):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.delenv("OPENRLHF_RPO_DEVICE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fake_ray.resources = {"GPU": gpus}
    assert cluster.choose_device(parse()) == ("cuda" if gpus else "cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_device_given_by_hand_needs_no_cluster(parse, fake_ray, monkeypatch, device):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert cluster.choose_device(parse(rpo__device=device)) == device
    assert os.environ["OPENRLHF_RPO_DEVICE"] == device
    fake_ray.init.assert_not_called()


@pytest.mark.parametrize(
    ("device", "changes", "level"),
    [
        ("cpu", {}, "off"),
        ("cuda", {}, "token"),
        ("cuda", {"rpo__method": "verify"}, "token"),
        ("cuda", {"rpo__method": "paper"}, "off"),
        ("cuda", {"rpo__enable": "false"}, "off"),
        ("cuda", {"algo__advantage__is_correction_level": "seq"}, "seq"),
        ("cuda", {"actor__policy_loss_type": "gspo"}, "off"),
        ("cpu", {"algo__advantage__is_correction_level": "token"}, "token"),
        ("cpu", {"ds__param_dtype": "bf16"}, "token"),
    ],
)
def test_engine_and_trainer_are_corrected_for_where_they_round(parse, fake_ray, monkeypatch, device, changes, level):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    args = parse(rpo__device=device, **changes)
    cluster.choose_device(args)
    assert args.algo.advantage.is_correction_level == level


def test_the_device_is_settled_before_the_checks_import_openrlhf(parse, monkeypatch):
    """Or the checks would prepare a CPU head node for CPU, and the actors of its cluster would ask for no GPU."""
    calls = []
    monkeypatch.setattr(cluster, "choose_device", lambda args: calls.append("device") or "cuda")
    monkeypatch.setattr(preflight, "check_run", lambda args, config: calls.append("checks"))
    monkeypatch.setattr(cluster, "connect", lambda args, device: calls.append(f"connect {device}"))
    train_rpo_ray.prepare(parse())
    assert calls == ["device", "checks", "connect cuda"]


def test_rpo_turns_the_engines_own_prefix_caching_on(parse, monkeypatch):
    monkeypatch.setattr(cluster, "choose_device", lambda args: "cpu")
    monkeypatch.setattr(preflight, "check_run", lambda args, config: None)
    monkeypatch.setattr(cluster, "connect", lambda args, device: None)
    rpo, plain = parse(), parse(rpo__enable="false", actor__model_name_or_path=model_dir("main"))
    train_rpo_ray.prepare(rpo)
    train_rpo_ray.prepare(plain)
    assert (rpo.vllm.enable_prefix_caching, plain.vllm.enable_prefix_caching) == (True, False)


def test_what_has_the_same_result_on_a_cpu_is_replaced(parse):
    args = parse()
    assert "flash_attention" in args.ds.attn_implementation
    adapt_options(args, "cpu")
    assert (args.ds.attn_implementation, args.vllm.sync_backend, args.vllm.enforce_eager) == ("sdpa", "gloo", True)


@pytest.mark.parametrize(
    ("installed", "asked", "used"),
    [
        (True, "flash_attention_2", "flash_attention_2"),
        (False, "flash_attention_2", "sdpa"),
        (False, "flash_attention_3", "flash_attention_3"),  # comes in another package
    ],
)
def test_without_flash_attn_a_gpu_attends_in_torchs_kernels(parse, monkeypatch, installed, asked, used):
    monkeypatch.setattr(cluster.platform, "has_flash_attn", lambda: installed)
    args = parse(ds__attn_implementation=asked, ds__packing_samples=True)
    adapt_options(args, "cuda")
    assert args.ds.attn_implementation == used


def test_an_optimizer_that_nvcc_compiles_is_refused_without_it(parse, monkeypatch):
    monkeypatch.setattr(cluster, "has_nvcc", lambda: False)
    with pytest.raises(UsageError, match="--ds.adam_offload: DeepSpeed compiles this optimizer with nvcc"):
        adapt_options(parse(ds__adam_offload=True), "cuda")
    monkeypatch.setattr(cluster, "has_nvcc", lambda: True)
    adapt_options(parse(ds__adam_offload=True), "cuda")


def test_sleep_at_zero_stage_3_needs_deepspeeds_own_adam(parse, monkeypatch):
    asleep = {"ds__enable_sleep": True, "ds__zero_stage": 3}
    monkeypatch.setattr(cluster, "has_nvcc", lambda: False)
    with pytest.raises(UsageError, match="--ds.zero_stage 3: .* this run has torch's, without nvcc"):
        adapt_options(parse(**asleep), "cuda")
    adapt_options(parse(ds__enable_sleep=True, ds__zero_stage=2), "cuda")
    monkeypatch.setattr(cluster, "has_nvcc", lambda: True)
    adapt_options(parse(**asleep), "cuda")
    with pytest.raises(UsageError, match="this run has muon"):
        adapt_options(parse(**asleep, actor__optim="muon"), "cuda")


def test_a_cpu_computes_in_float32(parse):
    args = parse()
    adapt_options(args, "cpu")
    from openrlhf.utils.utils import convert_to_torch_dtype

    assert str(convert_to_torch_dtype(args.ds.param_dtype)) == "torch.float32"
    with pytest.raises(ValueError, match="Invalid param_dtype"):
        convert_to_torch_dtype("fp8")


@pytest.mark.parametrize(
    ("device", "changes", "dtype"),
    [
        ("cuda", {}, "bf16"),
        ("cpu", {"ds__param_dtype": "bf16"}, "bf16"),
        ("cpu", {"ds__param_dtype": "bf16", "rpo__enable": "false"}, "fp32"),  # plain OpenRLHF's engines have float32
    ],
)
def test_weights_are_of_the_dtype_of_the_device_or_of_the_one_given(parse, fake_ray, monkeypatch, device, changes, dtype):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    args = parse(rpo__device=device, **changes)
    cluster.choose_device(args)
    assert args.ds.param_dtype == dtype


def test_an_attention_chosen_by_hand_stays(parse):
    args = parse(ds__attn_implementation="eager")
    adapt_options(args, "cpu")
    assert args.ds.attn_implementation == "eager"


@pytest.mark.parametrize(
    "changes",
    [
        {"ds__ring_attn_size": 2, "actor__num_gpus_per_node": 2},
        {"ds__tensor_parallel_size": 2, "actor__num_gpus_per_node": 2},
        {"vllm__tensor_parallel_size": 2},
        {"vllm__enable_sleep": True, "train__colocate_all": True},
        {"ds__param_dtype": "fp16"},
    ],
)
def test_what_has_no_cpu_form_is_refused(parse, changes):
    with pytest.raises(UsageError, match="GPU"):
        adapt_options(parse(**changes), "cpu")
