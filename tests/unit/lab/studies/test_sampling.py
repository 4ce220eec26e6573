"""A study that samples never goes on with, or shows, figures of a model, data or a reward file that have changed since."""

import json
import shutil

import pytest

from lab.studies import init_time, prefix_similarity, sampling
from lab.study import build_parser
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cli.main import main

PART = {"start_seconds": 9.0, "seconds": 60.0, "questions": 8, "tokens": 600, "rewarded": 3, "truncated": 0}


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A study of a model, data and a reward file in ``tmp_path``, without its engines."""
    monkeypatch.setattr(init_time, "measure", lambda args, engines: PART)
    monkeypatch.setattr(init_time, "save_plot", lambda *_, **__: None)
    shutil.copytree(model_dir("main"), tmp_path / "model")
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels): ...")
    data = write_dataset("main", tmp_path, 1, 8, seed=0)[1].rename(tmp_path / "data.jsonl")
    words = ["study", "init-time", "--out", str(tmp_path / "r.json"), "--model", str(tmp_path / "model")]
    return [*words, "--data", str(data), "--reward.remote_url", str(tmp_path / "reward.py")]


@pytest.mark.parametrize(
    ("file", "setting"), [("model/model.safetensors", "weights"), ("data.jsonl", "contents"), ("reward.py", "contents")]
)
def test_figures_of_what_has_changed_since_are_refused(words, tmp_path, file, setting, capsys):
    assert main(words) == main(words) == 0
    before = (tmp_path / "r.json").read_bytes()
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes() + b"\n")
    assert main(words) == 1
    assert f"its setting {setting} is" in capsys.readouterr().err
    assert (tmp_path / "r.json").read_bytes() == before


def test_the_content_of_a_file_of_an_option_with_an_equals_sign_counts_too(words, tmp_path):
    assert main([*words[:-2], f"--reward.remote_url={tmp_path / 'reward.py'}"]) == 0
    assert str(tmp_path / "reward.py") in json.loads((tmp_path / "r.json").read_text())["settings"]["contents"]


def test_on_the_testbed_the_level_says_it_all():
    """A package that was installed again has the same model in newer files."""
    args = build_parser(["init-time"]).parse_args(["init-time"])
    args.training = []
    settings = sampling.settings(args)
    assert settings["level"] == "main" and settings.get("weights") is settings["contents"] is None


@pytest.mark.parametrize("study", ["prefix-accuracy", "pathcheck", "prefix-similarity", "init-time"])
def test_a_place_that_cannot_be_written_is_found_before_anything_starts(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sampling, "opened", lambda *_: pytest.fail("engines started"))
    (tmp_path / "file").touch()
    assert main(["study", study, "--out", str(tmp_path / "file" / "r.json")]) == 1
    assert "r.json cannot be written" in capsys.readouterr().err


def test_another_encoder_in_the_same_folder_is_another_study(tmp_path, monkeypatch, capsys):
    part = {"long_enough": 2, "heads": {}, "endings": {"50%": {"same": 0.9, "other": 0.5}}}
    monkeypatch.setattr(prefix_similarity, "_measure", lambda args, result: result.add("q", part))
    monkeypatch.setattr(prefix_similarity, "save_plot", lambda *_, **__: None)
    shutil.copytree(model_dir("main"), tmp_path / "encoder")
    words = ["study", "prefix-similarity", "--out", str(tmp_path / "r.json"), "--embedder", str(tmp_path / "encoder")]
    assert main(words) == main(words) == 0
    (tmp_path / "encoder" / "model.safetensors").write_bytes(b"other")
    assert main(words) == 1
    assert "its setting embedder_weights is" in capsys.readouterr().err
