"""No Python code that a model brings along is run unless the user allowed it."""

import json
import os
import shutil

import pytest

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.platform import guard

OWN_CODE = """
open({trace!r}, "w").close()
from transformers import Qwen2Config

class Own(Qwen2Config):
    pass
"""


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


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "{", "\ufeff{}", "NaN" * 3])
def test_a_json_file_that_cannot_be_read_is_named(run, model, text):
    (model / "more.json").write_text(text)
    with pytest.raises(UsageError, match=r"cannot be read: its more.json is no JSON"):
        run(actor__model_name_or_path=model)


def test_a_file_that_is_none_is_not_waited_for(run, model):
    os.mkfifo(model / "pipe.json")
    run(actor__model_name_or_path=model)
