"""Exported files: written atomically, equal in both formats, loadable by ``datasets``."""

import json
import math

import pyarrow as pa
import pytest
from datasets import load_dataset

from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.portable import SCHEMA, from_row, to_row
from openrlhf_rpo.tables import column_names, read_rows, write_rows
from openrlhf_rpo.types import Path, Question

QUESTION = Question("q", "<u>1+1?", "2", text="1+1?")
PATHS = [
    Path("q", (5, 70_000, 1), (-0.5, -math.inf, -0.25), "stop", 1.0, 0.75),
    Path("r", (2**32 - 1,), None, "length", 0.0, 0.0, prefix_length=0, step=3),
]


def rows():
    return [to_row(PATHS[0], QUESTION, "a\u001b[31m", "t"), to_row(PATHS[1], None, None, None)]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_what_was_written_comes_back(tmp_path, suffix):
    file = tmp_path / f"paths{suffix}"
    assert write_rows(file, rows(), SCHEMA) == 2
    assert column_names(file) == SCHEMA.names
    first, second = (from_row(row, "here") for row in read_rows(file))
    assert (first.token_ids, first.log_probs, first.text) == (PATHS[0].token_ids, PATHS[0].log_probs, "a\u001b[31m")
    assert (first.question_id, first.question, first.label, first.score, first.reward) == ("q", "1+1?", "2", 1.0, 0.75)
    assert (tuple(second.token_ids), second.log_probs, second.finish_reason) == ((2**32 - 1,), None, "length")
    assert (second.question, second.text, second.tokenizer) == (None, None, None)


@pytest.mark.parametrize(("suffix", "kind"), [(".parquet", "parquet"), (".jsonl", "json")])
def test_datasets_loads_it(tmp_path, suffix, kind):
    file = tmp_path / f"paths{suffix}"
    write_rows(file, rows(), SCHEMA)
    data = load_dataset(kind, data_files=str(file), split="train", cache_dir=str(tmp_path / "datasets"))
    assert data.column_names == SCHEMA.names
    assert data[0]["token_ids"] == [5, 70_000, 1] and data[0]["log_probs"] == [-0.5, None, -0.25]
    assert data[1]["log_probs"] is None


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, suffix):
    file = tmp_path / f"paths{suffix}"
    write_rows(file, rows(), SCHEMA)
    before = file.read_bytes()

    def broken():
        yield rows()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(file, broken(), SCHEMA)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_only_the_named_columns_are_read_of_those_that_are_there(tmp_path):
    for name in ("a.parquet", "a.jsonl"):
        write_rows(tmp_path / name, [{"x": "1", "y": "2"}], pa.schema([("x", pa.string()), ("y", pa.string())]))
        assert list(read_rows(tmp_path / name, ["y", "z"])) == [{"y": "2"}]


def test_a_broken_file_is_named_with_the_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n\n{"x": \n')
    with pytest.raises(ExchangeError, match=r"a.jsonl, line 3: Expecting value"):
        list(read_rows(tmp_path / "a.jsonl"))
    (tmp_path / "b.jsonl").write_text("[1]\n")
    with pytest.raises(ExchangeError, match=r"b.jsonl, line 1: expected one JSON object a line, not a list"):
        list(read_rows(tmp_path / "b.jsonl"))
    (tmp_path / "c.parquet").write_text("PAR1")
    with pytest.raises(ExchangeError, match=r"c.parquet cannot be read"):
        list(read_rows(tmp_path / "c.parquet"))


def test_a_name_of_another_format_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ExchangeError, match=r"paths.csv: the name must end in .parquet, .jsonl or .json"):
        write_rows(tmp_path / "paths.csv", rows(), SCHEMA)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExchangeError, match="file/paths.jsonl cannot be written"):
        write_rows(tmp_path / "file" / "paths.jsonl", rows(), SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"finish_reason": "eos"}, "finish_reason is 'eos'"),
        ({"token_ids": [1, -1]}, "token_ids must be whole numbers"),
        ({"log_probs": [-1.0]}, "log_probs must have one value for each"),
        ({"score": "good"}, "score holds 'good'"),
        ({"text": 7}, "text holds 7"),
    ],
)
def test_a_value_that_no_path_can_have_is_refused_with_its_row(change, message):
    with pytest.raises(ExchangeError, match=f"row 9: {message}"):
        from_row(rows()[0] | change, "row 9")


def test_jsonl_is_strict_json(tmp_path):
    write_rows(tmp_path / "a.jsonl", rows(), SCHEMA)
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
