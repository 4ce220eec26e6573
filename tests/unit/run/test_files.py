"""The location of a run's cache, and its fingerprints."""

import json
from types import SimpleNamespace as Options

import pytest

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.run import files
from openrlhf_rpo.run.files import cache_name, cache_url, fingerprints
from openrlhf_rpo.types import Question


class Tokenizer:
    chat_template = "{{ messages }}"

    def __init__(self, vocabulary=("a", "b"), special=None):
        self.vocabulary = {word: i for i, word in enumerate(vocabulary)}
        self.special_tokens_map = special or {"eos_token": "<eos>"}

    def get_vocab(self):
        return dict(reversed(self.vocabulary.items()))  # in arbitrary order


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    (folder / "model.safetensors").write_bytes(b"12345678")
    return folder


@pytest.fixture
def args(tmp_path, model):
    return Options(
        rpo=Options(cache=Options(url=None)),
        ckpt=Options(path=str(tmp_path / "ckpt")),
        actor=Options(model_name_or_path=str(model)),
        data=Options(input_template=None, apply_chat_template=False),
    )


QUESTIONS = [Question("a", "1+1?", "2"), Question("b", "1+2?", "3")]


def test_the_cache_is_below_the_checkpoints_with_an_absolute_path(args, tmp_path, monkeypatch):
    assert cache_url(args) == f"sqlite:///{tmp_path}/ckpt/rpo_cache.db"
    monkeypatch.chdir(tmp_path)
    args.ckpt.path = "./ckpt"
    assert cache_url(args) == f"sqlite:///{tmp_path}/ckpt/rpo_cache.db"


def test_a_url_given_by_hand_stays(args):
    args.rpo.cache.url = "postgresql://host/db"
    assert cache_url(args) == "postgresql://host/db"


# ── Fingerprints ──


def changed(args, change):
    """The names of the fingerprints that a change affects."""
    before = fingerprints(args, QUESTIONS, Tokenizer())
    questions, tokenizer = change(args) or (QUESTIONS, Tokenizer())
    after = fingerprints(args, questions, tokenizer)
    assert list(before) == list(after) == ["data", "tokenizer", "template", "base model", "weights"]
    return [name for name in before if before[name] != after[name]]


def test_the_same_run_has_the_same_fingerprints(args):
    assert changed(args, lambda args: None) == []


def test_the_order_of_the_questions_and_of_the_vocabulary_does_not_matter(args):
    tokenizer = Tokenizer()
    tokenizer.get_vocab = lambda: tokenizer.vocabulary
    assert changed(args, lambda args: (QUESTIONS[::-1], tokenizer)) == []


def test_another_data_set_is_another_run(args):
    assert changed(args, lambda args: (QUESTIONS[:1], Tokenizer())) == ["data"]


@pytest.mark.parametrize("other", [Tokenizer(("a", "c")), Tokenizer(("b", "a")), Tokenizer(special={"eos_token": "</s>"})])
def test_another_tokenizer_is_another_run(args, other):
    assert changed(args, lambda args: (QUESTIONS, other)) == ["tokenizer"]


@pytest.mark.parametrize("change", [{"input_template": "Q: {}"}, {"apply_chat_template": True}])
def test_another_template_is_another_run(args, change):
    assert changed(args, lambda args: vars(args.data).update(change)) == ["template"]


def test_the_chat_template_counts_only_where_it_is_used(args):
    other = Tokenizer()
    other.chat_template = "another"
    assert changed(args, lambda args: (QUESTIONS, other)) == []
    args.data.apply_chat_template = True
    assert changed(args, lambda args: (QUESTIONS, other)) == ["template"]


def test_another_base_model_is_another_run(args, model):
    def change(file, content):
        return changed(args, lambda args: (model / file).write_text(content) and None)

    assert change("config.json", '{"hidden_size": 9}') == ["base model"]
    assert change("model.safetensors", "123") == ["base model", "weights"]


@pytest.mark.parametrize("at", [0, 4, 7])
def test_other_weights_of_the_same_size_are_another_run(args, model, at):
    content = bytearray(b"12345678")
    content[at] = 0
    assert changed(args, lambda args: (model / "model.safetensors").write_bytes(content) and None) == ["weights"]


def test_of_large_weights_a_part_everywhere_is_read(args, model, monkeypatch):
    monkeypatch.setattr(files, "MIB", 4)
    monkeypatch.setattr(files, "BLOCKS", 3)
    large = bytes(40)  # read: 0 to 3, 16 to 19, 32 to 35

    def at(i):
        (model / "model.safetensors").write_bytes(large)
        return changed(
            args, lambda args: (model / "model.safetensors").write_bytes(large[:i] + b"1" + large[i + 1 :]) and None
        )

    assert [i for i in range(40) if at(i)] == [0, 1, 2, 3, 16, 17, 18, 19, 32, 33, 34, 35]


def test_the_same_model_in_another_folder_is_the_same_run(args, model):
    def move(args):
        args.actor.model_name_or_path = str(model.rename(model.with_name("moved")))

    assert changed(args, move) == []


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """``downloaded(commit)`` puts org/model into the hub's cache; the hub itself is out of reach."""

    def download(commit):
        snapshot = tmp_path / "models--org--model" / "snapshots" / commit
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot.parents[1] / "refs").mkdir(exist_ok=True)
        (snapshot.parents[1] / "refs" / "main").write_text(commit)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return download


def test_a_model_of_the_hub_has_the_same_fingerprint_before_and_after_its_download(downloaded, monkeypatch):
    with monkeypatch.context() as online:
        online.setattr("transformers.utils.hub.hf_hub_download", lambda *_, **__: downloaded(40 * "a"))
        before = files.weights_fingerprint("org/model")
    downloaded(40 * "a")  # by the run
    assert before == files.weights_fingerprint("org/model") != files.weights_fingerprint("org/other")


def test_a_model_of_the_hub_is_known_by_its_name_and_commit(args, downloaded):
    args.actor.model_name_or_path = "org/model"
    assert changed(args, lambda args: downloaded(40 * "a")) == ["weights"]
    assert changed(args, lambda args: downloaded(40 * "b")) == ["weights"]
    assert changed(args, lambda args: setattr(args.actor, "model_name_or_path", "org/other")) == ["base model", "weights"]


def test_a_message_names_a_cache_by_its_file_or_its_url(args, tmp_path):
    assert cache_name(args) == f"{tmp_path}/ckpt/rpo_cache.db"
    args.rpo.cache.url = "postgresql+psycopg://rpo@db.local/paths"
    assert cache_name(args) == args.rpo.cache.url


@pytest.mark.parametrize("name", ["a?b", "a#b", "50%25", "a b"])
def test_a_folder_may_have_any_name(args, tmp_path, name):
    args.ckpt.path = str(tmp_path / name)
    with PathCache.open(cache_url(args), {}):
        assert (tmp_path / name / "rpo_cache.db").is_file()
