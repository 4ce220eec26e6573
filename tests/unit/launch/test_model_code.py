"""No Python code that a model brings along is run unless the user allowed it."""

import json
import os
import shutil

import pytest

from openrlhf_rpo.cli import train_rpo_ray
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.platform import guard

OWN_CODE = """
open({trace!r}, "w").close()
from transformers import Qwen2Config

class Own(Qwen2Config):
    pass
"""


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_that_brings_code_is_refused_before_the_code_runs(run, model, file):
    """The code leaves a trace when it is run; transformers would take it for a configuration."""
    trace = model / "ran"
    (model / "own.py").write_text(OWN_CODE.format(trace=str(trace)))
    config = json.loads((model / file).read_text())
    config["auto_map"] = {"AutoConfig": "own.Own"} if file == "config.json" else {"AutoTokenizer": ["own.Own", None]}
    (model / file).write_text(json.dumps(config))
    with pytest.raises(
        UsageError,
        match=f"^--actor.model_name_or_path .*: the model brings Python code .*{file}.*--rpo.trust_remote_code",
    ):
        run(actor__model_name_or_path=model)
    assert not trace.exists()


def test_code_that_is_named_deep_in_a_json_file_or_runs_while_generating_is_refused_too(run, model):
    (model / "more").mkdir()
    (model / "more" / "processor_config.json").write_text(
        json.dumps({"image": [{"auto_map": {"AutoProcessor": "own.Own"}}]})
    )
    with pytest.raises(UsageError, match="brings Python code of its own .by its more/processor_config.json"):
        run(actor__model_name_or_path=model)
    shutil.rmtree(model / "more")
    (model / "custom_generate").mkdir()
    (model / "custom_generate" / "generate.py").write_text("raise SystemExit")
    with pytest.raises(UsageError, match="brings Python code of its own .by its custom_generate/generate.py"):
        run(actor__model_name_or_path=model)


def test_a_model_that_brings_code_runs_it_when_that_was_asked_for(run, model):
    trace = model / "ran"
    (model / "own.py").write_text(OWN_CODE.format(trace=str(trace)))
    config = json.loads((model / "config.json").read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}
    (model / "config.json").write_text(json.dumps(config))
    guard.allow(True)  # as ``choose_device`` does
    run(actor__model_name_or_path=model, rpo__trust_remote_code="true")
    assert trace.exists()


def test_plain_openrlhf_does_not_run_a_models_code_either(argv, model, capsys):
    config = json.loads((model / "config.json").read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}
    (model / "config.json").write_text(json.dumps(config))
    assert train_rpo_ray.main(argv(actor__model_name_or_path=model, rpo__enable="false")) == 1
    assert "the model brings Python code of its own" in capsys.readouterr().err


def test_a_critic_that_brings_code_is_refused_by_its_own_option(run, model):
    config = json.loads((model / "config.json").read_text()) | {"auto_map": {"AutoConfig": "own.Own"}}
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="^--critic.model_name_or_path .*/copy: the model brings Python code"):
        run(algo__advantage__estimator="gae", critic__model_name_or_path=model, critic__num_gpus_per_node=1)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "{", "\ufeff{}", "NaN" * 3])
def test_a_json_file_that_cannot_be_read_is_named(run, model, text):
    (model / "more.json").write_text(text)
    with pytest.raises(UsageError, match=r"cannot be read: its more.json is no JSON"):
        run(actor__model_name_or_path=model)


def test_a_file_that_is_none_is_not_waited_for(run, model):
    os.mkfifo(model / "pipe.json")
    run(actor__model_name_or_path=model)
