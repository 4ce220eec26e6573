"""Python that comes with a model or with data runs nowhere, unless the user allowed it. It would leave a trace."""

import json
import pickle
import shutil
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest

from lab.testbed import model_dir
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.errors import UserError
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.platform import guard
from tests.unit.conftest import build_argv

CODE = """
open({trace!r}, "w").close()
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

class Own(Qwen2Config): pass
class Model(Qwen2ForCausalLM): pass
def generate(model, **options): pass
"""


class Unpickled:
    """Makes the trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


@pytest.fixture
def trace(tmp_path):
    """The file that hostile code makes. No test may leave it behind."""
    yield tmp_path / "trace"
    assert not (tmp_path / "trace").exists()


@pytest.fixture
def plant(tmp_path, trace):
    """``plant(name)``: a copy of the testbed's model with one of PLANTS in it."""

    def make(name: str) -> Path:
        model = Path(shutil.copytree(model_dir("main"), tmp_path / name))
        (model / "own.py").write_text(CODE.format(trace=str(trace)))
        PLANTS.get(name, lambda _: None)(model)
        return model

    return make


def add(file: Path, **entries: object) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | entries))


def config(model: Path) -> None:
    add(model / "config.json", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Model"})


def model_class(model: Path) -> None:
    add(model / "config.json", auto_map={"AutoModelForCausalLM": "own.Model"})


def unknown_type(model: Path) -> None:
    config(model)
    add(model / "config.json", model_type="own")


def tokenizer(model: Path) -> None:
    add(model / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})


def in_the_tokenizer_of_another_folder(model: Path) -> None:
    add(model / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": f"{model}--own.Own"})


def processor(model: Path) -> None:
    add(model / "processor_config.json", processor_class="Own", auto_map={"AutoProcessor": "own.Own"})


def nested_processor(model: Path) -> None:
    add(model / "processor_config.json", image_processor={"auto_map": {"AutoImageProcessor": "own.Own"}})


def feature_extractor(model: Path) -> None:
    add(model / "preprocessor_config.json", feature_extractor_type="Own", auto_map={"AutoFeatureExtractor": "own.Own"})


def video_processor(model: Path) -> None:
    add(model / "video_preprocessor_config.json", auto_map={"AutoVideoProcessor": "own.Own"})


def nested_config(model: Path) -> None:
    add(model / "config.json", text_config={"layers": [{"auto_map": {"AutoConfig": "own.Own"}}]})


def quantizer(model: Path) -> None:
    add(model / "config.json", quantization_config={"quant_method": "own", "auto_map": {"AutoQuantizer": "own.Own"}})


def escaped(model: Path) -> None:
    config(model)
    file = model / "config.json"
    file.write_text(file.read_text().replace("auto_map", "\\u0061uto_map"))


def generation(model: Path) -> None:
    add(model / "generation_config.json", auto_map={"GenerationConfig": "own.Own"})


def custom_generate(model: Path) -> None:
    (model / "custom_generate").mkdir()
    shutil.copy(model / "own.py", model / "custom_generate" / "generate.py")


def adapter_of_a_model_with_code(model: Path) -> None:
    other = Path(shutil.copytree(model, model.with_name("other")))
    config(other)
    add(model / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(other), task_type="CAUSAL_LM")


def adapter_of_a_module(model: Path) -> None:
    mapping = {"base_model_class": "Own", "parent_library": "own"}
    add(model / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(model), auto_mapping=mapping)


def adapter_with_a_module(model: Path) -> None:
    megatron = {"megatron_config": {"a": 1}, "megatron_core": "own", "target_modules": ["q_proj"]}
    add(model / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(model), **megatron)


PLANTS = {
    function.__name__: function
    for function in (
        *(config, model_class, unknown_type, tokenizer, in_the_tokenizer_of_another_folder, processor, nested_processor),
        *(feature_extractor, video_processor, nested_config, quantizer, escaped, generation, custom_generate),
        *(adapter_of_a_model_with_code, adapter_of_a_module, adapter_with_a_module),
    )
}
LOADED = ["config", "model_class", "unknown_type", "tokenizer", "custom_generate", *(n for n in PLANTS if "adapter" in n)]


@pytest.mark.parametrize("name", PLANTS)
def test_a_model_with_code_is_refused_by_option_and_file(train, plant, name):
    model = plant(name)
    said = train(actor__model_name_or_path=model, rpo__enable="false" if name == "config" else "true")
    assert f"--actor.model_name_or_path {model}: the model brings Python code of its own (by its " in said
    assert "--rpo.trust_remote_code" in said


@pytest.mark.parametrize("name", ["tokenizer", "nested_processor", "custom_generate"])
def test_no_other_command_runs_it(refused, plant, testbed, tmp_path, name, monkeypatch):
    """``doctor`` finds a failure. What reads a tokenizer only (``cache``, ``data``) does so without the model's code."""
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")  # the doctor then asks no Ray
    model, data = plant(name), str(testbed["data__prompt_dataset"])
    assert "brings Python code" in refused("eval", model, "--data", data, "--rpo.device", "cpu")
    assert main(["doctor", *build_argv(**testbed | {"actor__model_name_or_path": str(model)})]) == 1
    with suppress(UserError):
        load_tokenizer(str(model), offline=True)
    main(["data", data, "--out", str(tmp_path / "out.jsonl"), "--tokenizer", str(model), "--max-tokens", "500"])
    monkeypatch.delenv("RAY_ADDRESS")
    study = ("study", "init-time", "--out", tmp_path / "study.json", "--model", model, "--data", data)
    assert "brings Python code" in refused(*study)


def test_a_critic_with_code_is_refused_by_its_own_option(train, plant):
    model = plant("custom_generate")
    gae = {"algo__advantage__estimator": "gae", "critic__num_gpus_per_node": 1}
    said = train(critic__model_name_or_path=model, **gae)
    assert f"--critic.model_name_or_path {model}: the model brings Python code" in said


def test_a_reward_model_with_code_is_refused_by_its_own_option(train, plant):
    model = plant("custom_generate")
    no_other = {"rpo__reward__functions": None, "eval__dataset": None, "reward__num_gpus_per_node": 1}
    said = train(reward__model_name_or_path=model, **no_other)
    assert f"--reward.model_name_or_path {model}: the model brings Python code" in said


# ── Every process ──


@pytest.fixture
def load(tmp_path, monkeypatch):
    """``load(model)``: load it in this process as OpenRLHF does. Code that is allowed is copied below ``tmp_path``."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, dynamic_module_utils

    guard.install()
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def load_all(model: Path) -> None:
        for kind in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
            kind.from_pretrained(model, trust_remote_code=True, local_files_only=True)

    return load_all


@pytest.mark.parametrize("name", LOADED)
def test_the_guard_refuses_what_no_check_has_seen(plant, load, name):
    guard.allow(False)
    with pytest.raises(guard.ModelCodeError, match="it was not run. .*--rpo.trust_remote_code true"):
        load(plant(name))


@pytest.mark.parametrize("name", ["model_class", "custom_generate"])
def test_what_was_allowed_runs(plant, load, trace, name):
    guard.allow(True)
    load(plant(name))
    trace.unlink()


def test_a_process_that_vllm_starts_by_itself_has_nowhere_to_import_from(plant, load, monkeypatch):
    """It inherits the environment, but no guard."""
    guard.allow(True)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", guard.NO_FOLDER)
    with pytest.raises(NotADirectoryError, match="needs --rpo.trust_remote_code true"):
        load(plant("config"))


@pytest.mark.parametrize("name", ["evil/flash-attn", "evil/msa@v0", "kernels-community.evil/x", "/tmp/kernels-community/x"])
def test_a_kernel_on_the_hub_is_code_too(name):
    from transformers.integrations.hub_kernels import get_kernel

    guard.allow(False)
    with pytest.raises(guard.ModelCodeError, match=f"^{name} is code on the hub"):
        get_kernel(name)


@pytest.mark.parametrize("value", ["", "0", "true", "01"])
def test_the_permission_is_one_word(monkeypatch, value):
    monkeypatch.setenv(guard.TRUST_ENV, value)
    assert not guard.allowed()


def test_every_command_starts_without_the_permission(monkeypatch, refused):
    monkeypatch.setenv(guard.TRUST_ENV, "1")
    refused("cache", "info", "missing.db")
    assert not guard.allowed()


def test_weights_in_a_pickle_are_not_unpickled(plant, trace, load):
    import torch

    model = plant("bare")
    (model / "model.safetensors").unlink()
    torch.save({"weight": Unpickled(trace)}, model / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        load(model)


# ── Data ──


def script(folder: Path, trace: Path) -> Path:
    file = folder / "script.py"
    file.write_text(CODE.format(trace=str(trace)))
    return file


def folder_with_a_script(folder: Path, trace: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data" / "data.py").write_text(CODE.format(trace=str(trace)))
    return folder / "data"


def pickled_table(folder: Path, trace: Path) -> Path:
    (folder / "data").mkdir()
    for name in ("train.pkl", "train.pickle", "state.pkl", "dataset_info.pkl"):
        (folder / "data" / name).write_bytes(pickle.dumps(Unpickled(trace)))
    return folder / "data"


def archive_of_pickles(folder: Path, trace: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "x.pkl").write_bytes(pickle.dumps(Unpickled(trace)))
    with tarfile.open(folder / "data" / "train.tar", "w") as archive:
        for name in ("1.pkl", "1.pyd", "1.pickle", "1.pth", "1.npy", "1.npz"):
            archive.add(folder / "x.pkl", name)
    return folder / "data"


def saved_with_a_pickle(folder: Path, trace: Path) -> Path:
    (folder / "data").mkdir()
    (folder / "data" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "data" / "dataset_info.json").write_text(json.dumps({"features": {"a": {"_type": "Unpickler"}}}))
    (folder / "data" / "data.arrow").write_bytes(pickle.dumps(Unpickled(trace)))
    return folder / "data"


@pytest.mark.parametrize("make", [script, folder_with_a_script, pickled_table, archive_of_pickles, saved_with_a_pickle])
def test_data_with_code_runs_nowhere(testbed, tmp_path, trace, make):
    data, model = str(make(tmp_path, trace)), str(testbed["actor__model_name_or_path"])
    for words in (
        ["train", *build_argv(**testbed | {"data__prompt_dataset": data, "ckpt__path": tmp_path / "checkpoints"})],
        ["data", data, "--out", str(tmp_path / "out.jsonl")],
        ["eval", model, "--data", data, "--rpo.device", "cpu"],
    ):
        assert main(words) == 1
