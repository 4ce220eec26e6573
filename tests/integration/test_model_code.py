"""A model folder that gains code after the driver has checked it, with the command started in that folder."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.testbed import model_dir
from tests.integration.conftest import training_command

ROOT = Path(__file__).parents[2]
CODE = """
open({trace!r}, "a").close()
from transformers import Qwen2Config, Qwen2ForCausalLM
class Own(Qwen2Config): pass
class Model(Qwen2ForCausalLM): config_class = Own
def generate(model, **options): pass
"""
SHADOWED = ("numpy", "torch", "transformers", "vllm", "deepspeed", "wrapt", "kernels", "openrlhf_rpo")
METHOD = """
import json
from pathlib import Path

from openrlhf_rpo.algo.methods import RPO
from openrlhf_rpo.launch import cluster

class Own(RPO):
    pass

connect = cluster.connect

def plant(args, device):
    "What the checks cannot see: they are done."
    model = Path(args.actor.model_name_or_path)
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"}
    (model / "config.json").write_text(json.dumps(config))
    connect(args, device)

cluster.connect = plant
"""


@pytest.mark.parametrize(
    "rpo", [pytest.param("true", marks=pytest.mark.long), pytest.param("false", marks=pytest.mark.release)]
)
def test_no_process_of_a_run_runs_code_that_came_after_the_check(tmp_path, rpo):
    model = Path(shutil.copytree(model_dir("main"), tmp_path / "copy"))
    for module in ("own", *SHADOWED):
        (model / f"{module}.py").write_text(CODE.format(trace=str(tmp_path / f"ran_{module}")))
    (tmp_path / "method.py").write_text(METHOD)
    method = f"{tmp_path}/method.py:Own"
    command = training_command(tmp_path, 1, actor__model_name_or_path=model, rpo__method=method, rpo__enable=rpo)
    done = subprocess.run(
        [command[0], "-P", *command[1:]],
        cwd=model,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert list(tmp_path.glob("ran_*")) == []
    assert done.returncode == 1, done.stdout[-3000:]
    assert "is Python code that comes with a model; it was not run" in done.stdout
    if rpo == "true":
        assert "--rpo.trust_remote_code true" in done.stdout[done.stdout.rindex("error: ") :]
