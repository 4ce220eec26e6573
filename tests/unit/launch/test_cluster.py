"""How many devices a command needs, held against what OpenRLHF's own ``train`` asks Ray for."""

import importlib
import json
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from ray.runtime_env.runtime_env import _merge_runtime_env

from openrlhf_rpo import platform
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch import cluster, options, processes
from openrlhf_rpo.launch.cluster import check_resources, required_devices, start_patiently

platform.prepare()  # before OpenRLHF is imported
cli = importlib.import_module("openrlhf.cli.train_ppo_ray")
launcher = importlib.import_module("openrlhf.trainer.ray.launcher")
vllm_engine = importlib.import_module("openrlhf.trainer.ray.vllm_engine")
ppo_trainer = importlib.import_module("openrlhf.trainer.ppo_trainer")
ppo_trainer_async = importlib.import_module("openrlhf.trainer.ppo_trainer_async")


class Books:
    """Stands in for Ray: counts the bundles of placement groups, and the devices of actors outside of any."""

    def __init__(self) -> None:
        self.devices = 0.0

    def placement_group(self, bundles, strategy):
        self.devices += sum(bundle["GPU"] for bundle in bundles)
        assert all(bundle["CPU"] == bundle["GPU"] for bundle in bundles)  # a GPU never comes without a CPU
        return SimpleNamespace(ready=lambda: None, free=[1.0] * len(bundles))

    def options(self, num_cpus, num_gpus, resources=None, scheduling_strategy=None):
        assert num_cpus == num_gpus
        if scheduling_strategy is None:
            self.devices += num_gpus
        else:
            group, index = scheduling_strategy.placement_group, scheduling_strategy.placement_group_bundle_index
            group.free[index] -= num_gpus  # IndexError: no such bundle
            assert group.free[index] > -1e-9
        return MagicMock()


@pytest.fixture
def asked_by_upstream(monkeypatch):
    """Devices that upstream's ``train(args)`` asks for, without Ray."""

    def run(args) -> float:
        books = Books()
        ray = MagicMock()
        ray.get = lambda ref: ("host", 1)
        for module in (cli, launcher, vllm_engine):
            monkeypatch.setattr(module, "ray", ray)
            monkeypatch.setattr(module, "placement_group", books.placement_group)
        for module, name in (
            (cli, "PolicyModelActor"),
            (cli, "ReferenceModelActor"),
            (cli, "RewardModelActor"),
            (cli, "CriticModelActor"),
            (vllm_engine, "RolloutRayActor"),
        ):
            monkeypatch.setattr(module, name, books)
        monkeypatch.setattr(vllm_engine, "get_bundle_indices", lambda pg, i, size: [i * size])
        monkeypatch.setattr(ppo_trainer, "PPOTrainer", MagicMock())
        monkeypatch.setattr(ppo_trainer_async, "PPOTrainerAsync", MagicMock())
        monkeypatch.setattr(cli, "get_strategy", MagicMock())
        cli.train(args)
        return books.devices

    return run


KL = {"algo__kl__init_coef": 0.01, "ref__num_gpus_per_node": 2}
CRITIC = {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 2}
REWARD = {"rpo__reward__functions": None, "reward__model_name_or_path": "rm", "reward__num_gpus_per_node": 2}
ALL = {"train__colocate_all": True}
PAIR = {"train__colocate_critic_reward": True}
ASYNC = {"train__async_enable": True, "rpo__enable": "false"}
EVERYTHING = KL | CRITIC | REWARD
TOPOLOGIES = {
    "actor and engine": ({}, 2 + 2),
    "one actor on each of two nodes": ({"actor__num_nodes": 2, "actor__num_gpus_per_node": 1}, 2 + 2),
    "single devices": ({"actor__num_gpus_per_node": 1, "vllm__num_engines": 1}, 1 + 1),
    "engines of two devices": ({"vllm__tensor_parallel_size": 2}, 2 + 4),
    "no engine": ({"vllm__num_engines": 0, "rpo__enable": "false"}, 2),
    "reference": (KL, 2 + 2 + 2),
    "reference with the actor": (KL | {"train__colocate_actor_ref": True}, 2 + 2),
    "actor colocated with no reference": ({"train__colocate_actor_ref": True}, 2 + 2),
    "critic": (CRITIC, 2 + 2 + 2),
    "critic without a reward model, colocated with it": (CRITIC | PAIR | {"reward__num_gpus_per_node": 2}, 2 + 2 + 2),
    "reward model": (REWARD, 2 + 2 + 2),
    "reward model, colocated with no critic": (REWARD | PAIR, 2 + 2 + 2),
    "everything apart": (EVERYTHING, 10),
    "critic with reward": (EVERYTHING | PAIR, 8),
    "critic with reward, actor with reference": (EVERYTHING | PAIR | {"train__colocate_actor_ref": True}, 6),
    "all": (EVERYTHING | ALL, 2),
    "all, engine of two devices": (EVERYTHING | ALL | {"vllm__num_engines": 1, "vllm__tensor_parallel_size": 2}, 2),
    "all but critic with reward": (EVERYTHING | ALL | PAIR, 2 + 2),
    "all, critic on fewer": (EVERYTHING | ALL | {"critic__num_gpus_per_node": 1}, 2),
    "async": (EVERYTHING | ASYNC, 10),
    "all and async": (EVERYTHING | ALL | ASYNC, 2 + 2),
}


def changes_of(name):
    return {"actor__num_gpus_per_node": 2, "vllm__num_engines": 2} | TOPOLOGIES[name][0]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_devices_are_those_that_upstream_asks_for(parse, asked_by_upstream, name):
    args = parse(**changes_of(name))
    needed = sum(number for _, number, _ in required_devices(args))
    assert needed == asked_by_upstream(args) == TOPOLOGIES[name][1]


@pytest.mark.parametrize(
    "misfit",
    [
        {"ref__num_gpus_per_node": 1},
        {"vllm__num_engines": 3},
        {"critic__num_gpus_per_node": 3},
        {"reward__num_gpus_per_node": 3},
        PAIR | {"critic__num_gpus_per_node": 1},
    ],
)
def test_what_is_refused_as_a_misfit_upstream_cannot_start(parse, asked_by_upstream, monkeypatch, misfit):
    with pytest.raises(UsageError):
        parse(**changes_of("all") | misfit)
    monkeypatch.setattr(processes, "check", lambda *args, **kwargs: None)
    with pytest.raises((AssertionError, IndexError)):
        asked_by_upstream(parse(**changes_of("all") | misfit))


def test_each_need_names_its_flags(parse):
    needs = required_devices(parse(**changes_of("everything apart")))
    assert [(what, number) for what, number, _ in needs] == [
        ("actor", 2),
        ("vLLM engines", 2),
        ("reference", 2),
        ("critic", 2),
        ("reward model", 2),
    ]
    for _, _, flags in needs:
        for word in flags.replace("(none with --algo.kl.init_coef 0)", "").split(" x "):
            assert any(word.strip() in action.option_strings for action in options.build_parser()._actions)


# ── Too few ──

NEEDS = [("actor", 4, "--actor.flags"), ("vLLM engines", 2, "--vllm.flags")]


def test_exactly_enough_is_enough():
    check_resources(NEEDS, {"GPU": 6.0, "CPU": 1.0}, "GPU")


@pytest.mark.parametrize(("kind", "remedy"), [("GPU", "add GPUs to the cluster"), ("CPU", "Ray with --num-cpus 6 or more")])
def test_too_few_says_what_was_asked_what_there_is_and_what_to_do(kind, remedy):
    with pytest.raises(UsageError) as refused:
        check_resources(NEEDS, {kind: 5.0}, kind)
    for words in (f"asks for 6 {kind}s", "has 5", "actor: 4 (--actor.flags)", "vLLM engines: 2 (--vllm.flags)", remedy):
        assert words in str(refused.value)


def test_a_cluster_without_any_has_0():
    with pytest.raises(UsageError, match="has 0"):
        check_resources(NEEDS, {"CPU": 64.0}, "GPU")


def test_a_gpu_cluster_needs_a_cpu_for_each_process_too(parse, fake_ray):
    with pytest.raises(UsageError, match="asks for 2 CPUs, the Ray cluster has 1"):
        cluster.connect(parse(), "cuda")
    fake_ray.shutdown.assert_called_once()
    fake_ray.resources = {"CPU": 2.0, "GPU": 2.0}
    cluster.connect(parse(), "cuda")


def test_a_busy_cluster_is_waited_for_with_a_word(parse, fake_ray, capsys):
    fake_ray.resources = {"CPU": 2.0, "GPU": 2.0}
    cluster.connect(parse(), "cuda")
    assert "Waiting" not in capsys.readouterr().out
    fake_ray.available_resources = lambda: {"CPU": 2.0}
    cluster.connect(parse(), "cuda")
    assert "Waiting for GPUs: the command asks for 2, and 0 of the cluster's are free now" in capsys.readouterr().out


def test_a_local_cpu_cluster_has_a_cpu_for_each_process(parse, fake_ray, monkeypatch):
    monkeypatch.setattr(cluster.os, "cpu_count", lambda: 1)
    fake_ray.resources = {"CPU": 2.0}
    cluster.connect(parse(), "cpu")
    given = fake_ray.init.call_args.kwargs
    assert (given["num_cpus"], given["num_gpus"]) == (2, 0)
    assert given["address"] == "local"  # another Ray on this host is not joined


def test_workers_do_not_import_from_a_folder_that_the_driver_does_not_import_from(parse, fake_ray, monkeypatch, tmp_path):
    """Ray would put it first on their path."""
    fake_ray.resources = {"CPU": 2.0}
    fake_ray.job_config.JobConfig = SimpleNamespace
    monkeypatch.chdir(tmp_path)
    cluster.connect(parse(), "cpu")
    assert fake_ray.init.call_args.kwargs["job_config"]._runtime_env_has_working_dir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    cluster.connect(parse(), "cpu")
    assert fake_ray.init.call_args.kwargs["job_config"] == SimpleNamespace()


def test_a_job_may_set_variables_that_the_command_sets_too(monkeypatch):
    job = {"env_vars": {"NCCL_DEBUG": "INFO", "HF_HOME": "/shared"}}
    monkeypatch.setenv(cluster.JOB_CONFIG, json.dumps({"runtime_env": job}))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # as Ray does for the command of such a job
    merged = _merge_runtime_env(job, cluster._workers()["runtime_env"])
    assert (
        merged["env_vars"].items() >= {"NCCL_DEBUG": "INFO", "HF_HOME": "/shared", "TOKENIZERS_PARALLELISM": "true"}.items()
    )
    monkeypatch.setenv(cluster.JOB_CONFIG, "{}")
    assert _merge_runtime_env(job, cluster._workers()["runtime_env"]) is None  # what Ray refuses


# ── Starting Ray ──


@pytest.mark.parametrize(
    ("failures", "starts"),
    [
        ([], 1),
        (["The current node timed out during startup."], 2),
        (["... timed out during startup"] * 3, None),
        (["no"], None),
    ],
)
def test_only_a_ray_that_was_too_slow_is_started_again_and_not_for_ever(failures, starts):
    waiting, calls = list(failures), []

    def start():
        calls.append(1)
        if waiting:
            raise RuntimeError(waiting.pop(0))

    if starts is None:
        with pytest.raises(RuntimeError, match=failures[-1].removeprefix("...")):
            start_patiently(start)
        assert len(calls) == len(failures)
    else:
        start_patiently(start)
        assert len(calls) == starts


def test_ray_client_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="Ray Client: .* Submit the command with `ray job submit`"):
        cluster.join("ray://127.0.0.1:10001")


def test_an_error_that_names_its_process_is_not_waited_for():
    error = ValueError("x")
    assert cluster.settled(error, patience=0) is error
