"""Texts as vectors, with the testbed's model."""

import json
import shutil

import numpy as np
import pytest

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


def test_a_text_beyond_the_model_s_positions_is_cut(embedder):
    assert embedder.embed(["1" * 1500]) == pytest.approx(embedder.embed(["1" * 1024]), abs=1e-4)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--embedder .*: cannot be loaded"):
        Embedder(str(tmp_path))


def test_a_model_with_code_is_refused(tmp_path):
    folder = shutil.copytree(model_dir("main"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoModel": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="brings Python code of its own"):
        Embedder(str(folder))
