"""Texts as vectors, with the testbed's model."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from lab.studies import embeddings
from lab.studies.embeddings import Embedder
from lab.testbed import model_dir
from openrlhf_rpo.errors import UsageError

TEXTS = ["b12+30=42\n", "a30+42=72\nb12+30=42\nb12+30=42\n", "z99-01?"]


@pytest.fixture(scope="module")
def embedder():
    return Embedder(str(model_dir("main")))


def test_vectors_have_length_one_and_padding_plays_no_part(embedder):
    together = embedder.embed(TEXTS)
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(3), abs=1e-5)
    for row, text in zip(together, TEXTS, strict=True):
        assert embedder.embed([text])[0] == pytest.approx(row, abs=1e-4)


def test_the_same_text_is_nearer_than_another(embedder):
    a, b, other = embedder.embed([TEXTS[0], TEXTS[0], TEXTS[2]])
    assert a @ b == pytest.approx(1, abs=1e-5) and a @ other < 0.99


@pytest.mark.parametrize(("limit", "window"), [(None, 1024), (2048, 1024), (600, 600)])
def test_a_text_beyond_the_context_is_the_mean_over_the_tokens_of_its_windows(tmp_path, monkeypatch, limit, window):
    """A token a character. The model has 1024 positions, and its tokenizer may name a smaller context."""
    folder = shutil.copytree(model_dir("main"), tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["model_max_length"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | ({"model_max_length": limit} if limit else {})))
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = "b12+30=42\n" * 80 + "z99-01?" * 100
    with torch.inference_mode():
        parts = [text[start : start + window] for start in range(0, 1500, window)]
        states = torch.cat([model(**tokenizer(part, return_tensors="pt")).last_hidden_state[0] for part in parts])
    assert len(states) == 1500
    expected = torch.nn.functional.normalize(states.mean(0), dim=0).numpy()
    monkeypatch.setattr(embeddings, "_BATCH", 2)  # the windows of two texts need two passes
    found = Embedder(str(folder)).embed([TEXTS[0], text, TEXTS[2]])
    assert found[1] == pytest.approx(expected, abs=1e-4)
    assert found[0] @ Embedder(str(folder)).embed([TEXTS[0]])[0] == pytest.approx(1, abs=1e-4)


def test_a_beginning_beyond_the_context_is_not_the_shorter_one(embedder):
    head = "1" * 1024
    assert embedder.embed([head])[0] @ embedder.embed([head + TEXTS[1] * 16])[0] < 0.999


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--embedder .*: cannot be loaded"):
        Embedder(str(tmp_path))


def test_a_model_with_code_is_refused(tmp_path):
    folder = shutil.copytree(model_dir("main"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="brings Python code of its own"):
        Embedder(str(folder))
