"""What examples/cluster shows is accepted: by Ray's own schema, by Kubernetes' schemas, by the shell, by our command line.

KubeRay's definitions (CRDs) are in no package on PyPI. What is around the pod templates is therefore held against
``GROUPS`` and ``SPECS``, the fields that we use as KubeRay 1.3 declares them (``ray-operator/apis/ray/v1/*_types.go``, of
which its CRDs are made), and read by the part of Ray that reads a RayCluster in a cluster.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import ray
import yaml
from jsonschema import Draft202012Validator
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config

from openrlhf_rpo.launch.cluster import required_devices
from openrlhf_rpo.launch.options import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "cluster"
AUTOSCALER = ["aws.yaml", "gcp.yaml"]
KUBERAY = ["raycluster.yaml", "rayjob.yaml"]
KUBERNETES = "1.33"
MODULE = "openrlhf_rpo.cli.train_rpo_ray"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def ray_object(name: str) -> dict[str, Any]:
    [found] = [d for d in documents(name) if d["apiVersion"].startswith("ray.io/")]
    return found


def cluster_spec(name: str) -> dict[str, Any]:
    spec = ray_object(name)["spec"]
    return spec.get("rayClusterSpec", spec)


def test_every_file_is_looked_at():
    assert {path.name for path in FOLDER.iterdir()} == {*AUTOSCALER, *KUBERAY, "train.sbatch"}


# ── Ray's autoscaler ──


@pytest.mark.parametrize("name", AUTOSCALER)
def test_ray_accepts_the_clusters_of_the_clouds(name):
    """As ``ray up`` does: the defaults filled in, then the schema that Ray ships and the checks behind it."""
    [config] = documents(name)
    validate_config(prepare_config(config))


@pytest.mark.parametrize("name", AUTOSCALER)
@pytest.mark.parametrize("broken", [{"workers": 2}, {"head_node_type": None}, {"available_node_types": {"head": {}}}])
def test_the_schema_would_refuse_a_wrong_one(name, broken):
    [config] = documents(name)
    with pytest.raises(Exception, match="workers|None|required"):
        validate_config(prepare_config(config) | broken)


@pytest.mark.parametrize("name", AUTOSCALER)
def test_the_clouds_commands_are_shell(name):
    [config] = documents(name)
    commands = [c for key, value in config.items() if key.endswith("_commands") for c in value]
    assert len(commands) >= 8
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)


def brings(config: dict[str, Any], package: str) -> bool:
    """Whether the image has a package, or the head's container gets it before Ray starts there."""
    commands = prepare_config(config)["head_setup_commands"]  # Ray's default, unless the file has its own
    locked = (ROOT / "requirements" / "gpu.lock").read_text()
    return f"\n{package}==" in locked or any(re.match(rf"pip install '?{package}\b", command) for command in commands)


@pytest.mark.parametrize(("name", "package"), [("aws.yaml", "boto3"), ("gcp.yaml", "google-api-python-client")])
def test_the_autoscaler_in_the_heads_container_has_its_clouds_package(name, package):
    [config] = documents(name)
    assert brings(config, package)
    assert not brings(config | {"head_setup_commands": []}, package)


def test_every_node_of_google_has_the_account_that_may_pull_the_image():
    """Ray gives its account to the head only; a node without one has no login at the registry."""
    [config] = documents("gcp.yaml")
    nodes, head = config["available_node_types"], config["head_node_type"]
    assert "serviceAccounts" not in nodes[head]["node_config"]  # it would replace what Ray gives
    email = f"ray-autoscaler-sa-v1@{config['provider']['project_id']}.iam.gserviceaccount.com"
    for name in nodes.keys() - {head}:
        [account] = nodes[name]["node_config"]["serviceAccounts"]
        assert account == {"email": email, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}


# ── KubeRay ──

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
GROUP = {"rayStartParams": STRINGS, "template": {"type": "object"}}
WORKERS = {"groupName": {"type": "string"}} | {f"{n}eplicas": {"type": "integer"} for n in ("r", "minR", "maxR")}


def closed(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


CLUSTER = closed(
    {
        "rayVersion": {"const": ray.__version__},
        "headGroupSpec": closed(GROUP),
        "workerGroupSpecs": {"type": "array", "items": closed(GROUP | WORKERS)},
    }
)
SPECS = {
    "RayCluster": CLUSTER,
    "RayJob": closed(
        {
            "backoffLimit": {"type": "integer"},
            "shutdownAfterJobFinishes": {"type": "boolean"},
            "ttlSecondsAfterFinished": {"type": "integer"},
            "entrypoint": {"type": "string"},
            "runtimeEnvYAML": {"type": "string"},
            "rayClusterSpec": CLUSTER,
        }
    ),
}


@pytest.mark.parametrize("name", KUBERAY)
def test_the_objects_have_the_fields_of_kuberay(name):
    found = ray_object(name)
    assert found["apiVersion"] == "ray.io/v1"
    assert [e.message for e in Draft202012Validator(SPECS[found["kind"]]).iter_errors(found["spec"])] == []


@pytest.mark.parametrize("name", KUBERAY)
def test_kubernetes_accepts_the_pods_and_the_volume(name):
    spec = cluster_spec(name)
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert len(groups) == 2
    others = [d for d in documents(name) if not d["apiVersion"].startswith("ray.io/")]
    pods = [{"apiVersion": "v1", "kind": "PodTemplate", "template": group["template"]} for group in groups]
    for document in others + pods:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    pods[0]["template"]["spec"]["containers"][0]["volumes"] = []  # not there, but one level up
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pods[0], KUBERNETES, strict=True)


@pytest.mark.parametrize("name", KUBERAY)
def test_every_mounted_volume_is_declared(name):
    spec = cluster_spec(name)
    for pod in (group["template"]["spec"] for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]):
        declared = {volume["name"] for volume in pod["volumes"]}
        assert {m["name"] for container in pod["containers"] for m in container["volumeMounts"]} == declared


def read_by_ray(name: str) -> dict[str, Any]:
    """A RayCluster as Ray's autoscaler in the head pod reads it."""
    return _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "rpo", "namespace": "default"}, "spec": cluster_spec(name)}
    )


@pytest.mark.parametrize("name", KUBERAY)
def test_ray_reads_a_head_without_cpus_and_two_nodes_of_eight_gpus(name):
    nodes = read_by_ray(name)["available_node_types"]
    assert nodes["headgroup"]["resources"]["CPU"] == 0
    assert (nodes["gpu"]["resources"]["GPU"], nodes["gpu"]["min_workers"]) == (8, 2)


def test_the_job_makes_the_cluster_of_the_other_file():
    assert cluster_spec("rayjob.yaml") == cluster_spec("raycluster.yaml")


# ── The commands ──


def options_of(words: list[str]) -> list[str]:
    return words[words.index(MODULE) + 1 :]


def job_command() -> list[str]:
    return options_of(shlex.split(ray_object("rayjob.yaml")["spec"]["entrypoint"]))


STAND_INS = {
    "scontrol": "echo gpu-1; echo gpu-2",
    "srun": 'printf "%s\\0" "$@" > "$RECORD/srun.$$"; '
    'for word; do case $word in --*) shift ;; *) break ;; esac; done; exec "$@"',
    # Waits for both nodes, which start in the background.
    "timeout": 'for _ in $(seq 200); do set -- "$RECORD"/ray.*; [ $# = 2 ] && exit; sleep 0.1; done; exit 1',
    "ray": 'printf "%s\\0" "$@" > "$RECORD/new.$$" && mv "$RECORD/new.$$" "$RECORD/ray.$$"',
    "python": 'printf "%s\\0" "$@" "$RAY_ADDRESS" > "$RECORD/python.$$"',
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """train.sbatch, run on two nodes that are this one: program -> the words of each of its calls."""
    tmp = tmp_path_factory.mktemp("slurm")
    programs, record = tmp / "venv" / "bin", tmp / "record"
    for folder in (programs, record):
        folder.mkdir(parents=True)
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp), "RECORD": str(record), "VENV": str(tmp / "venv"), "TMPDIR": str(tmp)}
    env |= {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu-[1-2]", "SLURM_CPUS_PER_TASK": "64", "SLURM_GPUS_PER_NODE": "8"}
    subprocess.run(["bash", FOLDER / "train.sbatch", "--train.seed", "7"], env=env, cwd=tmp, check=True, timeout=30)
    calls: dict[str, list[list[str]]] = {"srun": [], "ray": [], "python": []}
    for file in record.iterdir():
        calls[file.name.split(".")[0]].append(file.read_text().split("\0")[:-1])
    return calls


def test_slurm_starts_ray_on_every_node_and_the_command_on_one(slurm):
    starts = sorted(slurm["ray"], key=lambda words: "--head" not in words)
    assert [("--head" in words, "--num-gpus=8" in words) for words in starts] == [(True, True), (False, True)]
    assert "--port=20077" in starts[0] and "--address=gpu-1:20077" in starts[1]
    assert len(slurm["srun"]) == 4 and all("--cpus-per-task=64" in words for words in slurm["srun"])  # of sbatch it has none
    [words] = slurm["python"]
    assert words[-1] == "gpu-1:20077"
    assert parse(options_of(words[:-1])).train.seed == 7


def test_the_scripts_of_slurm_are_marked_so_that_the_linter_finds_them():
    assert os.access(FOLDER / "train.sbatch", os.X_OK)
    assert (FOLDER / "train.sbatch").read_text().startswith("#!/usr/bin/env bash\n")


def test_the_commands_ask_for_the_gpus_that_their_clusters_have(slurm):
    gpus = 0
    for node in read_by_ray("rayjob.yaml")["available_node_types"].values():
        gpus += node["resources"].get("GPU", 0) * node["min_workers"]
    for words in (job_command(), options_of(slurm["python"][0][:-1])):
        assert sum(number for _, number, _ in required_devices(parse(words))) == gpus == 16


def test_the_commands_keep_a_group_in_one_micro_batch(slurm):
    """Otherwise it shares only a part of its prefix (docs/shared_prefix.md)."""
    for words in (job_command(), options_of(slurm["python"][0][:-1])):
        args = parse(words)
        group, ranks = args.rollout.n_samples_per_prompt, args.actor.num_nodes * args.actor.num_gpus_per_node
        assert args.rollout.micro_batch_size % group == args.train.micro_batch_size % group == 0
        assert args.train.batch_size % (args.train.micro_batch_size * ranks) == 0


def test_the_commands_differ_in_their_places_only(slurm):
    """And both keep checkpoints on what all nodes share, the cache elsewhere, and go on when they are started again."""
    job, batch = parse(job_command()), parse(options_of(slurm["python"][0][:-1]))
    for args in (job, batch):
        assert args.ckpt.load_enable and not args.rpo.cache.url.startswith(f"sqlite:///{args.ckpt.path}")
        assert args.eval.dataset and args.eval.steps > 0
        assert Path(args.logger.tensorboard_dir).parent == Path(args.ckpt.path).parent
    for section in ("actor", "ref", "vllm", "rollout", "algo", "data", "ds", "eval"):
        assert getattr(job, section) == getattr(batch, section), section
