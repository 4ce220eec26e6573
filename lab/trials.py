"""Runs of a study as trials of Ray Tune, as many at a time as fit on the cluster.

A trial is a small process that starts the training command on the same cluster and waits for it. It requests no devices,
because the command requests its own. Limiting the number of concurrent trials prevents deadlocks between runs that each hold
some of their devices.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from threading import Event
from types import SimpleNamespace

import ray
from ray import tune
from tqdm import tqdm

from lab.runs import StudyError, train
from lab.training import Job
from openrlhf_rpo.launch.cluster import init_ray, join, required_devices, start_patiently

# By default Tune logs every trial in three formats and changes the folder, and Ray hides GPUs from trials without any.
_QUIET = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_CHDIR_TO_TRIAL_DIR": "0"}
# A trial's figures are in the files of its run: silence Tune's warning about missing ones.
logging.getLogger("ray.tune.analysis.experiment_analysis").setLevel(logging.ERROR)
_ENVIRONMENT = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **_QUIET}}


def through_tune(jobs: Sequence[Job], options: SimpleNamespace, parallel: int | None) -> Iterator[Job]:
    """Train ``jobs``, at most ``parallel`` at a time, and yield the finished ones. Raises StudyError for the others.

    ``options`` determine the devices of one run. Trials stay on this node, where the runs' folders and caches are.
    """
    if not jobs:
        return
    needs = sum(number for _, number, _ in required_devices(options))
    address = os.environ.get("RAY_ADDRESS")
    if address:
        join(address, log_to_driver=False, runtime_env=_ENVIRONMENT)
    else:
        cpus = max(os.cpu_count() or 1, needs * (parallel or 1))
        local = {"address": "local", "num_cpus": cpus, "include_dashboard": False, "log_to_driver": False}
        start_patiently(lambda: init_ray(**local, runtime_env=_ENVIRONMENT))
    try:
        tuner = _tuner(jobs, at_a_time(ray.cluster_resources(), needs, parallel))
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the figures only
            results = tuner.fit()
    finally:
        ray.shutdown()
    failed = {result.config["job"]: result.error for result in results if result.error is not None}
    yield from (job for number, job in enumerate(jobs) if number not in failed)
    if failed:
        said = "\n".join(str(error).strip().splitlines()[-1] for error in failed.values())
        raise StudyError(f"{len(failed)} of {len(jobs)} trials failed; the others are kept:\n{said}")


def at_a_time(room: dict[str, float], needs: int, parallel: int | None) -> int:
    """Number of runs of ``needs`` GPUs (CPUs on a cluster without GPUs) that fit at a time. Raises StudyError if none."""
    kind = "GPU" if room.get("GPU") else "CPU"
    fitting = int(room.get(kind, 0)) // needs
    if not fitting:
        raise StudyError(f"a run asks for {needs} {kind}s, and the Ray cluster has {room.get(kind, 0):.0f}")
    return min(parallel or fitting, fitting)


def _tuner(jobs: Sequence[Job], concurrent: int) -> tune.Tuner:
    here, folder = ray.util.get_node_ip_address(), jobs[0].run.folder.parent.parent
    address, directory = ray.get_runtime_context().gcs_address, os.getcwd()

    def trial(config: dict) -> None:
        os.chdir(directory)
        os.environ["RAY_ADDRESS"] = address
        job = jobs[config["job"]]
        train(job.run, job.words, job.data, lambda share, said: tune.report({"share": share}), Event())
        tune.report({"share": 1.0})

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    return tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{"CPU": 0.0, f"node:{here}": 0.001}])),
        param_space={"job": tune.grid_search(list(range(len(jobs))))},
        tune_config=tune.TuneConfig(max_concurrent_trials=concurrent),
        run_config=tune.RunConfig(
            name="trials", storage_path=str(folder / "ray-tune"), verbose=0, callbacks=[_Bar(jobs, concurrent)]
        ),
    )


class _Bar(tune.Callback):
    """A progress bar of runs on standard error."""

    def __init__(self, jobs: Sequence[Job], concurrent: int) -> None:
        self.names = [job.run.name for job in jobs]
        self.shares = [0.0] * len(jobs)
        form = "{desc} |{bar}| {n:.2f}/{total_fmt} runs [{elapsed}<{remaining}{postfix}]"
        self.bar = tqdm(total=len(jobs), desc=f"{concurrent} at a time", bar_format=form, dynamic_ncols=True)

    def on_trial_result(
        self, iteration: int, trials: list, trial: tune.experiment.Trial, result: dict, **info: object
    ) -> None:
        number = trial.config["job"]
        self.shares[number] = result["share"]
        self.bar.n = sum(self.shares)
        self.bar.set_postfix_str(self.names[number])

    def on_experiment_end(self, trials: list, **info: object) -> None:
        self.bar.close()
