"""Data that no run can use: broken files, rows without a question or a label. Each is refused with its file and place."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_rpo.cli.main import main
from openrlhf_rpo.data.values import LONGEST
from tests.unit.conftest import build_argv

ROWS = [{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(16)]
GOOD = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
CSV = b"question,answer\n" + b"".join(b"%d+1?,%d\n" % (i, i + 1) for i in range(16))


def parquet(columns: dict) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


PARQUET = parquet({"question": [f"{i}+1?" for i in range(16)], "answer": [str(i + 1) for i in range(16)]})
NOT_UTF8 = parquet({"question": pa.array([b"caf\xe9"] * 16).view(pa.string()), "answer": ["1"] * 16})


def line(text: str) -> bytes:
    """Good rows, and then a line."""
    return GOOD + text.encode() + b"\n"


FILES = {
    "bytes that are no text": (
        "x.jsonl",
        GOOD + b'{"question": "caf\xe9?", "answer": "1"}\n',
        "line 17: not UTF-8 text (byte",
    ),
    "UTF-16": ("x.jsonl", GOOD.decode().encode("utf-16"), "line 1: not UTF-8 text (it is UTF-16)"),
    "a compressed file": ("x.jsonl", b"\x1f\x8b\x08" + bytes(99), "gzip-compressed; unpack it"),
    "a binary file": ("x.jsonl", bytes(range(256)) * 8, "line 1: not"),
    "a text file": ("x.txt", b"hello\n", "name must end in .jsonl"),
    "a file without a suffix": ("x", GOOD, "name must end in .jsonl"),
    "a program": ("x.py", b"raise SystemExit('it ran')", "name must end in .jsonl"),
    "a compressed file by its name": ("x.jsonl.gz", GOOD, "name must end in .jsonl"),
    "an empty file": ("x.jsonl", b"", "x.jsonl: the data set is empty"),
    "blank lines": ("x.jsonl", b"\n\n \n", "x.jsonl: the data set is empty"),
    "an empty array": ("x.json", b"[]", "x.json: the data set is empty"),
    "an empty CSV": ("x.csv", b"", "x.csv: the data set is empty"),
    "a header alone": ("x.csv", b"question,answer\n", "no rows below its header"),
    "no rows in Parquet": (
        "x.parquet",
        parquet({"question": pa.array([], pa.string())}),
        "x.parquet: the data set is empty",
    ),
    "one broken line": ("x.jsonl", GOOD + b'{"question": "a", "answ\n' + GOOD, "line 17: not JSON"),
    "a web page": ("x.json", b"<html>404</html>", "line 1: not JSON"),
    "a line that is a number": ("x.jsonl", line("5"), "line 17: expected an object"),
    "an array of texts": ("x.json", b'["a", "b"]', "row 1: expected an object"),
    "one array in an array": ("x.json", b'[{"question": "a"}, []]', "row 2: expected an object"),
    "deep lists": ("x.jsonl", line('{"question": ' + "[" * 200_000), "line 17: lists or objects are nested"),
    "deep objects": ("x.jsonl", line('{"a": ' * 5000 + "1" + "}" * 5000), "line 17: lists or objects are nested"),
    "rather deep lists": ("x.jsonl", line('{"a": ' + "[" * 99 + "]" * 99 + "}"), "line 17: lists or objects are nested"),
    "a deep array": ("x.json", b"[" * 200_000, "x.json: lists or objects are nested"),
    "the end of a long array": ("x.json", b"[" + (b'{"question": "%s"}, ' % (b"a" * 500)) * 20_000 + b"5]", "row 20001: "),
    "a NUL byte": ("x.jsonl", line('{"question": "a\0b", "answer": "1"}'), "line 17: not JSON (Invalid control character"),
    "NUL bytes at the end": ("x.jsonl", GOOD + bytes(4096), "line 17: not JSON"),
    "half a surrogate pair": ("x.jsonl", line('{"question": "\\ud800", "answer": "1"}'), "line 17: half a surrogate pair"),
    "a key twice": ("x.jsonl", line('{"answer": "1", "answer": "2"}'), "line 17: the key 'answer' is there twice"),
    "an endless number": ("x.jsonl", line('{"question": "a", "answer": %s}' % ("9" * 5000)), "line 17: Exceeds the limit"),
    "CSV that is no text": ("x.csv", CSV + b"caf\xe9,1\n", "line 18: not UTF-8 text (byte 0xe9)"),
    "ragged CSV": ("x.csv", CSV + b"1,2,3\n", "line 18: the header has 2 fields, this row 3"),
    "short CSV": ("x.csv", CSV + b"1\n", "line 18: the header has 2 fields, this row 1"),
    "an open quote": ("x.csv", CSV + b'"1,2\n', "line 18: not CSV"),
    "a NUL byte in CSV": ("x.csv", CSV + b"a\0,2\n", "line 18: a NUL byte"),
    "two columns of one name": ("x.csv", b"question,question,answer\na,b,1\n", "names the column 'question' twice"),
    "Parquet that is cut": ("x.parquet", PARQUET[:-99], "x.parquet: not Parquet, or cut short"),
    "Parquet with damaged pages": ("x.parquet", PARQUET[:40] + b"\xff" * 40 + PARQUET[80:], "x.parquet: "),
    "a pointer to a large file": ("x.parquet", b"version https://git-lfs.github.com/spec/v1\n", "not Parquet, or cut short"),
    "Parquet that is no text": ("x.parquet", NOT_UTF8, "x.parquet: damaged: "),
    "an Arrow file that is none": ("x.arrow", b"no", "x.arrow: cannot be read"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_broken_file_is_refused_with_its_name_and_the_line(train, tmp_path, kind):
    name, content, message = FILES[kind]
    (tmp_path / name).write_bytes(content)
    said = train(data__prompt_dataset=tmp_path / name)
    assert said.startswith(f"error: --data.prompt_dataset {tmp_path / name}") and message in said


@pytest.mark.parametrize("kind", ["bytes that are no text", "one broken line", "deep lists", "ragged CSV", "a text file"])
def test_every_command_that_reads_data_refuses_alike(train, refused, testbed, tmp_path, kind):
    name, content, message = FILES[kind]
    (tmp_path / name).write_bytes(content)
    assert message in train(eval__dataset=tmp_path / name)
    assert message in refused("data", tmp_path / name, "--out", tmp_path / "out.jsonl")
    model = testbed["actor__model_name_or_path"]
    assert message in refused("eval", model, "--data", tmp_path / name, "--rpo.device", "cpu", "--out", tmp_path / "results")
    assert message in doctor(testbed, tmp_path / name)


def doctor(testbed, data) -> str:
    with redirect_stdout(StringIO()) as out:
        assert main(["doctor", "--json", *build_argv(**testbed | {"data__prompt_dataset": data})]) == 1
    return "\n".join(f["message"] for f in json.loads(out.getvalue())["findings"] if f["level"] == "fail")


def test_a_folder_is_looked_through(train, tmp_path):
    (tmp_path / "data").mkdir()
    assert "no file in this folder has a name that ends in .jsonl" in train(data__prompt_dataset=tmp_path / "data")
    (tmp_path / "data" / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "data" / "b.jsonl").write_bytes(line("{"))
    assert "data/b.jsonl, line 17: not JSON" in train(data__prompt_dataset=tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.jsonl", "there is no such file or folder"),
        ("./none", "there is no such file or folder"),
        ("{good},", "an empty name"),
        (" ", "the value is empty"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(train, tmp_path, name, message):
    shutil.copy(write(tmp_path, ROWS), tmp_path / "good.jsonl")
    assert message in train(data__prompt_dataset=name.format(good=tmp_path / "good.jsonl"))


# ── Rows ──


def write(folder, rows):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


CHAT = [{"role": "user", "content": "1+1?"}]
QUESTIONS = [None, "", " \n", 5, 0.5, True, ["a", "b"], {"text": "a"}, [], "a\0b", "x" * (LONGEST + 1)]
LABELS = [
    None,
    "",
    " ",
    "N/A",
    "na",
    "NaN",
    "None",
    "null",
    float("nan"),
    float("inf"),
    ["5"],
    ["5", "6"],
    {"a": "5"},
    "a\0b",
]


@pytest.mark.parametrize("question", QUESTIONS[:6] + QUESTIONS[-2:], ids=lambda q: repr(q)[:12])
def test_a_row_without_a_question_is_refused_with_its_number(train, tmp_path, question):
    file = write(tmp_path, [*ROWS, {"question": question, "answer": "5"}])
    said = train(data__prompt_dataset=file)
    assert f"{file}: --data.input_key question: 1 of 17 rows have no question to ask, the first is row 17: " in said


@pytest.mark.parametrize("label", LABELS[:4] + LABELS[8:12], ids=repr)
def test_a_row_without_a_label_is_refused_with_its_number(train, tmp_path, label):
    file = write(tmp_path, [*ROWS, {"question": "5?", "answer": label}])
    assert f"{file}: --data.label_key answer: 1 of 17 rows have no label" in (said := train(data__prompt_dataset=file))
    assert "the first is row 17: " in said


def test_questions_in_chat_form_need_the_chat_template(train, tmp_path):
    file = write(tmp_path, [{"question": CHAT, "answer": "2"}] * 16)
    assert "a list of chat messages. Add --data.apply_chat_template" in train(data__prompt_dataset=file)


def test_a_row_with_other_keys_is_one_without_a_question(train, tmp_path):
    file = write(tmp_path, [*ROWS, {"problem": "5?", "answer": "5"}])
    assert "the first is row 17: 'None', which is not text" in train(data__prompt_dataset=file)


def test_what_training_refuses_openrlhf_rpo_data_counts_and_leaves_out(tmp_path, capsys):
    bad = [{"question": q, "answer": "5"} for q in [*QUESTIONS, [*CHAT, *CHAT]]]
    bad += [{"question": f"{i}?", "answer": label} for i, label in enumerate(LABELS) if label != ["5"]]
    file = write(tmp_path, [*ROWS, *bad])
    assert main(["data", str(file), "--out", str(tmp_path / "out.jsonl"), "--json"]) == 0
    dropped = json.loads(capsys.readouterr().out)["dropped"]
    assert {reason: len(rows) for reason, rows in dropped.items()} == {"no question": 12, "no answer": 13}
    assert [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()] == ROWS
