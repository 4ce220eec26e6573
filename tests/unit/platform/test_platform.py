"""A CPU host is made fit for OpenRLHF; a GPU host is left alone."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_rpo import platform
from openrlhf_rpo.platform import cpu, guard

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (platform.DEVICE_ENV, *platform.CPU_ENV):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def run(program: str, device: str, *words: str) -> list[str]:
    """The lines that a fresh process prints."""
    env = os.environ | {platform.DEVICE_ENV: device, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env=env)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\n")[:-1]


# ── The choice ──


@pytest.mark.parametrize(
    ("option", "cluster_gpus", "driver_has_cuda", "expected"),
    [
        ("auto", 0.0, False, "cpu"),
        ("auto", 8.0, False, "cuda"),
        ("auto", 0.0, True, "cuda"),
        ("cpu", 8.0, True, "cpu"),
        ("cuda", 0.0, False, "cuda"),
    ],
)
def test_choice_of_the_device(monkeypatch, option, cluster_gpus, driver_has_cuda, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: driver_has_cuda)
    assert platform.choose(option, cluster_gpus) == expected
    assert platform.device() == expected


def test_a_choice_is_made_anew_for_each_run(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    platform.choose("cuda", 0.0)
    assert platform.choose("auto", 0.0) == "cpu"


@pytest.fixture
def from_here(monkeypatch):
    """This process looks for modules in the current folder."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])


def test_workers_are_told_the_device_and_what_a_cpu_host_needs(from_here):
    platform.choose("cpu", 0.0)
    assert platform.worker_env() == {platform.DEVICE_ENV: "cpu", guard.TRUST_ENV: "0"} | platform.CPU_ENV
    assert platform.worker_env()["OMP_NUM_THREADS"] == "1"


def test_workers_on_a_gpu_host_are_told_nothing_else(from_here):
    os.environ["OMP_NUM_THREADS"] = "3"
    platform.choose("cuda", 0.0)
    assert platform.worker_env() == {platform.DEVICE_ENV: "cuda", guard.TRUST_ENV: "0"}


def test_workers_are_told_what_this_process_may_run():
    platform.choose("cuda", 0.0)
    guard.allow(True)
    assert platform.worker_env()[guard.TRUST_ENV] == "1"


def test_workers_look_for_modules_in_the_current_folder_only_where_this_process_does(monkeypatch, tmp_path):
    """It may be a model's folder, with a file of its own named numpy.py."""
    platform.choose("cuda", 0.0)
    monkeypatch.chdir(tmp_path)
    assert platform.worker_env()["PYTHONSAFEPATH"] == "1"
    for here in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [here, *sys.path])
        assert "PYTHONSAFEPATH" not in platform.worker_env()


def test_what_the_user_has_set_stays():
    os.environ["OMP_NUM_THREADS"] = "3"
    platform.choose("cpu", 0.0)
    assert platform.worker_env()["OMP_NUM_THREADS"] == "3"


def test_the_setup_hook_names_prepare():
    module, _, name = platform.SETUP_HOOK.rpartition(".")
    assert getattr(sys.modules[module], name) is platform.prepare


# ── What prepare does ──


def test_on_a_gpu_host_nothing_is_patched_for_the_device():
    program = """
import sys, torch
current, modules = torch.cuda.current_device, set(sys.modules)
from openrlhf_rpo import platform
platform.prepare()
print(torch.cuda.current_device is current)
print(sorted(name for name in set(sys.modules) - modules if name.split('.')[0] not in ('openrlhf_rpo', 'wrapt')))
import ray.actor, ray.util.placement_group
print(ray.actor.ActorClass.options.__module__, ray.util.placement_group.__module__)
"""
    assert run(program, "cuda") == ["True", "[]", "ray.actor ray.util.placement_group"]


CAN = [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]


@pytest.mark.parametrize(("device", "installed", "can"), CAN)
def test_flash_attention_runs_where_it_is_installed_and_a_gpu_is_used(monkeypatch, device, installed, can):
    platform.choose(device, 0.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    assert platform.has_flash_attn() == can


@pytest.mark.parametrize(("toolkit", "optimizer"), [("'/usr/local/cuda'", "get_optimizer_"), ("None", "without_compiling")])
def test_where_nothing_compiles_for_the_gpu_torchs_optimizer_takes_the_place_of_deepspeeds(toolkit, optimizer):
    program = f"""
from openrlhf_rpo import platform
platform.prepare()
import torch.utils.cpp_extension
torch.utils.cpp_extension.CUDA_HOME = {toolkit}
import deepspeed.runtime.engine
print(deepspeed.runtime.engine.DeepSpeedEngine.get_optimizer_configuration.__name__)
"""
    assert run(program, "cuda")[-1].startswith(optimizer)


ON_A_CPU_HOST = """
import json, os, sys
from openrlhf_rpo import platform
platform.choose("cpu", 0.0)
platform.prepare()
platform.prepare()
import torch, deepspeed
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.utils.deepspeed import DeepspeedStrategy

found = {
    "devices": [torch.cuda.current_device(), str(torch.zeros(1).to(torch.cuda.current_device()).device)],
    "by name": str(torch.device(f"cuda:{torch.cuda.current_device()}")),
    "does nothing": [torch.cuda.synchronize(), torch.cuda.empty_cache(), torch.cuda.set_device(0)],
    "replay buffer": len(NaiveReplayBuffer(4)),
    "moving average": DeepspeedStrategy.moving_average.__defaults__,
}

child = os.fork()
rank = int(child == 0)
store = {"init_method": f"file://{sys.argv[1]}/store", "auto_mpi_discovery": False}
deepspeed.init_distributed("gloo", rank=rank, world_size=2, **store)
gathered = []
for i in range(30):
    with deepspeed.zero.Init(config_dict_or_path={"train_batch_size": 2, "zero_optimization": {"stage": 3}}):
        layer = torch.nn.Linear(1024, 1024)
    with deepspeed.zero.GatheredParameters(list(layer.parameters()), modifier_rank=0), torch.no_grad():
        if rank == 0:
            layer.weight.fill_(i)
    with deepspeed.zero.GatheredParameters(layer.weight):
        loaded = bool((layer.weight == i).all())
    with deepspeed.zero.GatheredParameters(list(layer.parameters())):
        read = layer.weight.detach().clone()
    gathered.append(loaded and bool((read == i).all()))

config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.0}}
model = torch.nn.Linear(2, 1, bias=False)
engine, *_ = deepspeed.initialize(model=model, config=config)
before = engine.module.weight.detach().clone()
engine.backward(engine(torch.ones(1, 2)).sum())
engine.step()
found["fused"] = engine.basic_optimizer.defaults["fused"]
found["moved"] = (before - engine.module.weight).tolist()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
if rank == 0:
    found |= {"gathered": gathered, "child": os.waitpid(child, 0)[1]}
    print(json.dumps(found), flush=True)
os._exit(0)  # its threads can abort an interpreter that ends around them
"""


@pytest.fixture(scope="module")
def on_a_cpu_host(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "compiled"))
        patch.setenv("LOCAL_RANK", "0")
        *_, found = run(ON_A_CPU_HOST, "cpu", str(folder))
    return json.loads(found) | {"compiled": (folder / "compiled").exists()}


def test_on_a_cpu_host_what_asks_for_a_cuda_device_gets_the_cpu(on_a_cpu_host):
    assert on_a_cpu_host["devices"] == ["cpu", "cpu"] and on_a_cpu_host["by name"] == "cuda:0"
    assert on_a_cpu_host["does nothing"] == [None, None, None]
    assert on_a_cpu_host["replay buffer"] == 0
    assert on_a_cpu_host["moving average"] == [0.992, "cpu"]


def test_deepspeed_on_a_cpu_host_compiles_nothing(on_a_cpu_host):
    """Its own operations would be compiled at the first run on a machine, which takes a compiler and more than a minute."""
    assert on_a_cpu_host["fused"] is True
    assert on_a_cpu_host["moved"][0] == pytest.approx([0.1, 0.1])  # Adam's first step: the learning rate
    assert not on_a_cpu_host["compiled"]


def test_weights_that_ranks_gather_on_a_cpu_host_are_whole_at_once(on_a_cpu_host):
    """ZeRO stage 3: a weight is loaded, then read, beside a bias whose gather ends long before the weight's."""
    assert on_a_cpu_host["gathered"] == [True] * 30 and on_a_cpu_host["child"] == 0


def test_actors_on_a_cpu_host_ask_for_no_gpu():
    asked = []

    class ActorClass:
        def options(self, **kwargs):
            asked.append(kwargs)

    cpu._actors_ask_for_no_gpu(SimpleNamespace(ActorClass=ActorClass))
    ActorClass().options(num_gpus=0.2, num_cpus=0.2)
    ActorClass().options(num_cpus=1)
    assert asked == [{"num_gpus": 0, "num_cpus": 0.2}, {"num_gpus": 0, "num_cpus": 1}]


def test_placement_groups_on_a_cpu_host_ask_for_no_gpu():
    asked = []
    module = SimpleNamespace(placement_group=lambda bundles, strategy: asked.append((bundles, strategy)))
    cpu._bundles_ask_for_no_gpu(module)
    module.placement_group([{"GPU": 1, "CPU": 1}] * 2, strategy="PACK")
    assert asked == [([{"CPU": 1}] * 2, "PACK")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_preparing_loads_neither_torch_nor_openrlhf(device):
    """A Ray worker is prepared before it knows what it will be."""
    program = """
import sys
from openrlhf_rpo import platform
platform.prepare()
print([name for name in ('torch', 'openrlhf', 'ray', 'vllm', 'deepspeed', 'transformers') if name in sys.modules])
"""
    assert run(program, device) == ["[]"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_worker_runs_no_code_of_a_model(device, tmp_path):
    """As OpenRLHF loads a configuration, in a process that has only called the hook of Ray's workers."""
    (tmp_path / "own.py").write_text("print('ran')")
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "own.Own"}}')
    program = f"""
from openrlhf_rpo import platform
platform.prepare()
from transformers import AutoConfig
try:
    AutoConfig.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)
except platform.guard.ModelCodeError as error:
    print(error)
"""
    refused = "own.py is Python code that comes with a model; it was not run. Read it, then add --rpo.trust_remote_code true"
    assert run(program, device) == [f"{tmp_path}/{refused}"]


# ── Ports ──


def test_a_port_is_free_and_none_that_the_kernel_gives_to_others():
    given_out = range(*map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
    ports = {cpu.free_port() for _ in range(20)}
    assert len(ports) > 1
    assert not ports & set(given_out)


def test_a_port_in_use_is_never_chosen():
    taken = cpu.free_port()
    nothing_left = pytest.raises(OSError, match=f"no free port was found between {taken} and {taken}")
    with socket.create_server(("", taken)), nothing_left:
        cpu.free_port(range(taken, taken + 1))
    assert cpu.free_port(range(taken, taken + 1)) == taken


def test_a_compiler_that_only_images_for_running_name_is_none(monkeypatch, tmp_path):
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert not cpu.has_nvcc()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    assert cpu.has_nvcc()
