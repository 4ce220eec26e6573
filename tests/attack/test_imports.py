"""Sources of an initial cache with rows that no path can be, through ``cache import`` and the training command's checks."""

import json
import math
import os
from pathlib import Path as File

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.testbed import model_dir
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.sources import check_source, parse_source
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.types import Path, Question
from tests.unit.conftest import build_argv

QUESTIONS = [Question("id1", "<u>1+1?", "2", text="1+1?")]
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(model_dir("main")), offline=True)


@pytest.fixture(scope="module")
def row(tokenizer):
    """A row that can be imported as it is."""
    mark = tokenizer_fingerprint(tokenizer)
    return {"question_id": "id1", "token_ids": [5, 6, 1], "log_probs": [-0.5, None, 0.0], "text": "2", "tokenizer": mark}


ROWS = [
    *({"token_ids": value} for value in (5, "5 6 1", {"a": 1}, [[5], [6], [1]], [5, 6.0, 1], [True, 6, 1], [5, None, 1])),
    *({"token_ids": value} for value in ([-1, 6, 1], [5, 6, 2**32], [5, 6, 10**400], [5, "6", 1], [4_000_000_000, 6, 1])),
    *({"log_probs": value} for value in (-0.5, "-0.5", [500, -1, -1], [0.5, -1, -1], [math.nan] * 3, [math.inf] * 3)),
    *({"log_probs": value} for value in ([-math.inf] * 3, [-1, -1], [-1] * 4, ["-1"] * 3, [True] * 3, [[-1]] * 3)),
    *({"score": value} for value in ("1", math.nan, math.inf, 10**400, True, [1], {"a": 1})),
    *({"reward": value} for value in ("1", -math.inf, False)),
    *({"finish_reason": value} for value in ("eos", 7, ["stop"], {"a": "stop"}, True, "")),
    *({"text": value} for value in (7, ["2"], True, "\ud800", "2\udfff")),
    *({name: value} for name in ("question_id", "question", "label", "tokenizer") for value in (7, ["x"], "\udc00")),
    {"text": None, "tokenizer": "another"},
    {"text": None, "token_ids": None},
]  # fmt: skip


@pytest.mark.parametrize("bad", ROWS, ids=lambda bad: str(bad)[:40])
def test_a_row_that_is_no_path_is_refused_by_its_number(tmp_path, row, tokenizer, bad):
    file = tmp_path / "paths.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (row, row | bad)))
    with pytest.raises(ExchangeError, match=r"paths.jsonl, (row|line) 2: ") as refusal:
        check_source(parse_source(str(file), "question", None), QUESTIONS, tokenizer)
    assert len(str(refusal.value)) < 1000


LINES = {
    "deep": DEEP.encode(),
    "a deep value": b'{"text": "2", "score": ' + DEEP.encode() + b"}",
    "a long number": b'{"text": "2", "score": ' + b"9" * 5000 + b"}",
    "a list": b"[1, 2]",
    "half": b'{"text": "2", "sc',
    "latin-1": '{"text": "\xe9"}'.encode("latin-1"),
    "utf-16": '{"text": "2"}'.encode("utf-16"),
    "bytes": b"\x00\xff\xfe\x80" * 10,
    "nothing": b"",
    "a word": b"text",
}


@pytest.mark.parametrize("name", LINES)
def test_a_file_that_is_no_table_is_refused(tmp_path, tokenizer, name):
    for suffix in (".jsonl", ".parquet"):
        file = tmp_path / f"paths{suffix}"
        file.write_bytes(LINES[name])
        for source in (f"{file}", f"{file}:text"):
            with pytest.raises(ExchangeError, match=r"paths\.(jsonl|parquet)"):
                check_source(parse_source(source, "question", None), QUESTIONS, tokenizer)


TABLES = {
    "numbers as text": {"text": pa.array([2])},
    "nested ids": {"token_ids": pa.array([[[1]]]), "text": pa.array(["2"])},
    "ids that are halves": {"token_ids": pa.array([[1.5]])},
    "no utf-8": {"text": pa.array([b"\xff\xfe"], pa.binary()).view(pa.binary()).cast(pa.binary())},
    "times as scores": {"text": pa.array(["2"]), "score": pa.array([2**62], pa.timestamp("us"))},
    "a map": {"text": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
}


@pytest.mark.parametrize("name", TABLES)
def test_a_parquet_file_of_other_types_is_refused(tmp_path, tokenizer, name):
    file = tmp_path / "paths.parquet"
    pq.write_table(pa.table(TABLES[name] | {"question": pa.array(["1+1?"])}), file)
    with pytest.raises(ExchangeError, match=r"paths\.parquet"):
        check_source(parse_source(str(file), "question", None), QUESTIONS, tokenizer)


@pytest.mark.parametrize("value", [["a", "b"], [{"role": "user"}], {"a": 1}, 7, None, [[{"content": 1}]]])
def test_a_question_of_any_form_is_at_most_no_match(tmp_path, tokenizer, value):
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"question": value, "worked": "2"}) + "\n")
    with pytest.raises(ExchangeError, match="none of its 1 paths belongs"):
        check_source(parse_source(f"{file}:worked", "question", None), QUESTIONS, tokenizer)


@pytest.fixture
def options(testbed, tmp_path):
    places = {"ckpt__path": tmp_path / "checkpoints", "ckpt__output_dir": tmp_path / "model"}
    for place in places.values():
        place.mkdir()
    return lambda **changes: build_argv(**testbed | places | changes)


def first_question(testbed) -> dict:
    return json.loads(File(testbed["data__prompt_dataset"]).read_text().splitlines()[0])


@pytest.mark.parametrize("bad", [{"log_probs": [500.0, -1.0, -1.0]}, {"token_ids": [4_000_000_000, 6, 1]}, {"score": "1"}])
def test_the_commands_refuse_it_before_they_write(refused, train, options, testbed, tmp_path, row, bad):
    file = tmp_path / "paths.jsonl"
    asked = first_question(testbed)
    good = row | {"question_id": None, "question": asked["question"], "label": asked["answer"]}
    file.write_text("".join(json.dumps(line) + "\n" for line in (good, good | bad)))
    assert "row 2" in refused("cache", "import", file, *options())
    assert "row 2" in train(rpo__init__mode="import", rpo__init__source=file)


def test_a_forged_cache_as_a_source_is_refused_before_anything_is_written(refused, options, tmp_path, row):
    url = f"sqlite:///{tmp_path}/source/rpo_cache.db"
    with PathCache.open(url, {"tokenizer": row["tokenizer"]}) as cache:
        cache.commit_initial([Path("id1", (4_000_000_000, 1), (-0.5, -0.5), "stop", 1.0, 1.0)])
        cache.mark_initialised()
    assert "question id1: token id 4,000,000,000" in refused("cache", "import", tmp_path / "source", *options())


def test_a_pipe_is_no_source(refused, options, tmp_path):
    os.mkfifo(tmp_path / "paths.jsonl")
    assert "error: there is no file" in refused("cache", "import", tmp_path / "paths.jsonl", *options())


def test_solutions_that_verify_rejects_are_said_at_the_import_and_at_the_start(options, testbed, tmp_path, capfd):
    asked = first_question(testbed)
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(asked | {"worked": f"\\boxed{{{asked['answer']}}}"}) + "\n")
    alone = {"rollout__n_samples_per_prompt": 1, "train__batch_size": 8, "rpo__preset": "raft"}
    words = options(rpo__method="verify", **alone)
    assert main(["cache", "import", f"{file}:worked", *words]) == 0
    assert "1 paths are without log-probs, and --rpo.method verify checks a path by them" in capfd.readouterr().out
    main(["doctor", *words])
    assert "1 paths of the cache are without log-probs" in " ".join(capfd.readouterr().out.split())
