"""The command on files that the tests make: what it writes is what training reads."""

import csv
import json
import os
import shlex
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, load_dataset

from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.console import Output
from openrlhf_rpo.data.files import readable
from openrlhf_rpo.errors import UsageError, guarded
from openrlhf_rpo.exchange.sources import parse_source
from openrlhf_rpo.launch.options import parse
from openrlhf_rpo.rollout.questions import load_questions
from openrlhf_rpo.upstream import get_tokenizer

ROWS = [{"problem": f"{i}+1?", "solution": f"It is \\boxed{{{i + 1}}}.", "answer": str(i + 1)} for i in range(40)]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


@pytest.fixture
def data(tmp_path, capsys):
    """``data(*words)``: the command, writing out.jsonl unless told otherwise; its status, output and errors."""

    def run(*words: object, out: object = tmp_path / "out.jsonl") -> SimpleNamespace:
        status = main(["data", *map(str, words), "--out", str(out)])
        said = capsys.readouterr()
        return SimpleNamespace(status=status, out=said.out, err=said.err)

    return run


@pytest.fixture
def write(tmp_path):
    """Rows as a file of the name's suffix."""

    def to(name: str, rows: list[dict]) -> Path:
        file = tmp_path / name
        if file.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), file)
        elif file.suffix == ".csv":
            with file.open("w", newline="") as lines:
                writer = csv.DictWriter(lines, rows[0])
                writer.writeheader()
                writer.writerows(rows)
        else:
            lines = [json.dumps(row) for row in rows]
            file.write_text("\n".join(lines) if file.suffix == ".jsonl" else json.dumps(rows))
        return file

    return to


def read(file: Path) -> list[dict]:
    kind = "parquet" if file.suffix == ".parquet" else "json"
    return list(load_dataset(kind, data_files=str(file), split="train"))


# ── Forms in and out ──


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "csv"])
@pytest.mark.parametrize("target", ["out.jsonl", "out.parquet"])
def test_every_form_becomes_the_same_file(data, write, tmp_path, suffix, target):
    done = data(write(f"in.{suffix}", ROWS), out=tmp_path / target)
    assert done.status == 0, done.err
    assert "--question problem (guessed from the columns problem, solution, answer)" in done.err
    assert read(tmp_path / target) == [{"question": row["problem"], "answer": row["answer"]} for row in ROWS]


def test_training_reads_what_was_written(data, write, tmp_path):
    """By the options that the command names, no more than the parser needs beside them."""
    done = data(write("in.jsonl", [*ROWS, ROWS[0]]), "--held-out", tmp_path / "held.jsonl", "--json")
    said = json.loads(done.out)
    args = parse([*said["training_options"], "--actor.model_name_or_path", "x", "--rpo.reward.functions", "math",
                  "--vllm.num_engines", "1", "--actor.num_gpus_per_node", "1", "--algo.advantage.estimator", "rloo",
                  "--rollout.n_samples_per_prompt", "2", "--train.batch_size", "2048"])  # fmt: skip
    questions, merged = load_questions(args, get_tokenizer(str(model_dir("main")), None))
    assert len(questions) == said["training"] and merged == 0
    assert {(q.prompt, q.label) for q in questions} <= {(row["problem"], row["answer"]) for row in ROWS}
    assert args.eval.dataset == str(tmp_path / "held.jsonl") and args.eval.steps > 0  # or nothing would be evaluated


def asked(source: Path) -> list[tuple[str, str]]:
    """What training would ask: prompts and labels."""
    args = parse(["--data.prompt_dataset", str(source), "--data.input_key", "problem", "--data.label_key", "answer",
                  "--actor.model_name_or_path", "x", "--rpo.reward.functions", "math", "--vllm.num_engines", "1",
                  "--actor.num_gpus_per_node", "1", "--algo.advantage.estimator", "rloo",
                  "--rollout.n_samples_per_prompt", "2", "--train.batch_size", "2048"])  # fmt: skip
    return [(q.prompt, q.label) for q in load_questions(args, get_tokenizer(str(model_dir("main")), None))[0]]


def test_what_datasets_saved_to_disk_is_read_by_training_and_by_the_command(data, tmp_path):
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS[:3])).save_to_disk(tmp_path / "splits")
    expected = [(row["problem"], row["answer"]) for row in ROWS]
    for folder, split, n in [("one", "train", 40), ("splits", "train", 40), ("splits", "test", 3)]:
        assert data(tmp_path / folder, "--split", split, "--force").status == 0
        assert [(row["question"], row["answer"]) for row in read(tmp_path / "out.jsonl")] == expected[:n]
    assert asked(tmp_path / "one") == asked(tmp_path / "splits") == expected
    assert (
        "splits: there is no split 'dev'; the splits are train, test"
        in data(tmp_path / "splits", "--split", "dev", "--force").err
    )


def test_what_save_to_disk_says_about_its_rows_must_be_whole(data, tmp_path):
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "in")
    (tmp_path / "in" / "state.json").write_text('{"_fingerprint": ')
    assert f"{tmp_path}/in/state.json: not JSON" in data(tmp_path / "in").err
    (tmp_path / "in" / "state.json").write_text('{"a": ' * 99 + "1" + "}" * 99)
    assert f"{tmp_path}/in/state.json: lists or objects are nested" in data(tmp_path / "in").err


def test_rows_in_a_file_named_like_those_of_save_to_disk_are_rows(data, write, tmp_path):
    (tmp_path / "in" / "new").mkdir(parents=True)
    file = write("in/new/state.json", ROWS)
    assert data(tmp_path / "in").status == 0 and len(read(tmp_path / "out.jsonl")) == 40
    file.write_text('{\n"problem": "1+1?"\n}')
    assert f"{file}, line 1: not JSON" in data(tmp_path / "in", "--force").err


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_training_and_the_command_read_a_number_or_date_as_the_same_text(data, write, tmp_path, suffix):
    typed = {"number": [0.00001, 2.5, 1e22], "day": [date(2020, 1, 31), date(2021, 1, 1)]}
    if suffix == "parquet":
        typed["decimal"] = [Decimal("0.00001"), Decimal("2.50000")]
    for name, values in typed.items():
        values = list(map(str, values)) if suffix == "jsonl" and name == "day" else values
        file = write(f"{name}.{suffix}", [{"question": f"{i}?", "answer": value} for i, value in enumerate(values)])
        assert data(file, "--force", "--keep-unparsable").status == 0
        args = parse(["--data.prompt_dataset", str(file), "--data.input_key", "question", "--data.label_key", "answer",
                      "--actor.model_name_or_path", "x", "--rpo.reward.functions", "math", "--vllm.num_engines", "1",
                      "--actor.num_gpus_per_node", "1", "--algo.advantage.estimator", "rloo",
                      "--rollout.n_samples_per_prompt", "2", "--train.batch_size", "2048"])  # fmt: skip
        labels = sorted(q.label for q in load_questions(args, get_tokenizer(str(model_dir("main")), None))[0])
        assert labels == sorted(json.loads(line)["answer"] for line in (tmp_path / "out.jsonl").open())
        assert not any("e" in label for label in labels)


@pytest.mark.parametrize(
    ("answers", "line"),
    [(["1", "9007199254740993", "0.5"], 2), (["12345678901234567890"], 1), (["9007199254740993", "1"], None)],
)
@pytest.mark.parametrize("form", ["{}", "[{}]", "[[1, {}]]"])
def test_an_integer_that_would_lose_digits_is_refused_with_its_line(data, tmp_path, answers, line, form):
    file, numbers = tmp_path / "in.jsonl", map(form.format, answers)
    file.write_text("\n".join(f'{{"question": "{i}?", "id": {{"n": {n}}}, "answer": "1"}}' for i, n in enumerate(numbers)))
    done = data(file)
    assert done.status == (1 if line else 0)
    assert not line or f"in.jsonl, line {line}: id.n is {answers[line - 1]}" in done.err and "in quotes" in done.err


def test_a_name_with_an_at_sign_is_a_name_except_to_training(data, write, tmp_path):
    file = write("a@b.jsonl", ROWS)
    assert data(file).status == 0 and len(read(tmp_path / "out.jsonl")) == 40
    message = "a@b.jsonl: OpenRLHF takes what follows an @ as a folder.*; rename the file"
    with pytest.raises(UsageError, match=message), readable([str(file)], "--eval.dataset"):
        pytest.fail("read")


def test_a_csv_file_may_begin_with_a_blank_line(data, tmp_path):
    (tmp_path / "in.csv").write_text("\nquestion,answer\n7?,007\n")
    assert data(tmp_path / "in.csv").status == 0 and read(tmp_path / "out.jsonl") == [{"question": "7?", "answer": "007"}]


def test_several_files_are_one_data_set_and_a_csv_stays_text(data, write, tmp_path):
    """Read as numbers, the first column would be 7.0 and 0.5; read with missing values, NA and the empty field are none."""
    numbers = [{"problem": "agent?", "answer": "007"}, {"problem": "half?", "answer": "0.50"}]
    others = [{"problem": "NA", "answer": "1"}, {"problem": "none?", "answer": ""}]
    done = data(write("a.parquet", ROWS), write("b.csv", numbers), write("c.csv", others), "--json")
    written = read(tmp_path / "out.jsonl")[len(ROWS) :]
    assert [(row["question"], row["answer"]) for row in written] == [("agent?", "007"), ("half?", "0.50"), ("NA", "1")]
    assert json.loads(done.out)["dropped"] == {"no answer": [{"row": 44, "what": "''"}]}


def test_nested_columns_are_named_with_a_dot(data, write, tmp_path):
    chat = [{"prompt": [{"role": "user", "content": "6*7?"}], "reward_model": {"ground_truth": "42", "style": "rule"}}]
    assert data(write("in.jsonl", chat)).status == 0
    assert read(tmp_path / "out.jsonl") == [{"question": "6*7?", "answer": "42"}]


def test_worked_solutions_give_the_answer_and_become_an_initial_cache(data, write, tmp_path):
    rows = [{"problem": row["problem"], "solution": row["solution"]} for row in ROWS]
    rows += [{"problem": "2?", "solution": "lost"}]
    done = data(write("in.jsonl", rows), "--solution", "solution", "--json")
    said = json.loads(done.out)
    assert "--extract boxed (as most rows of solution have it)" in done.err
    assert said["solutions"] == {"kept": 40, "rewarded": 40} and len(said["dropped"]["no answer"]) == 1
    source = parse_source(said["training_options"][-1], "question", "answer")
    assert [path.text for path in source.paths("")] == [row["solution"] for row in ROWS]
    assert [row["answer"] for row in read(tmp_path / "out.jsonl")] == [row["answer"] for row in ROWS]


def test_solutions_that_are_not_rewarded_are_no_initial_cache(data, write):
    rows = [{"problem": f"{i}+1?", "answer": str(i + 1), "solution": "as I said"} for i in range(4)]
    done = data(write("in.jsonl", rows), "--solution", "solution")
    assert "No solution is rewarded" in done.out and "--rpo.init" not in done.out


# ── What is dropped, held out, sampled ──


def test_every_row_is_accounted_for(data, write, tmp_path):
    rows = [*ROWS, ROWS[3], {"problem": "3+1?", "answer": "5"}, {"problem": "y?", "answer": "!?"}, {"problem": "z?"}]
    done = data(write("in.jsonl", rows), "--held-out", tmp_path / "held.jsonl", "--held-out-share", "0.25", "--sample", "20",
                "--json")  # fmt: skip
    said = json.loads(done.out)
    assert {reason: len(found) for reason, found in said["dropped"].items()} == {
        "no answer": 1,
        "label that the math reward cannot parse": 1,
        "duplicate, merged": 1,
        "same question, other answer: the first is kept": 1,
    }
    dropped = sum(map(len, said["dropped"].values()))
    assert said["training"] == 20 and said["held_out"] > 0
    assert said["training"] + said["held_out"] + said["left_out_by_sampling"] + dropped == said["rows_read"] == 44
    files = [{row["question"] for row in read(tmp_path / name)} for name in ("out.jsonl", "held.jsonl")]
    assert [len(questions) for questions in files] == [20, said["held_out"]] and not files[0] & files[1]


def test_people_read_the_reasons_and_the_rows(data, write):
    done = data(write("in.jsonl", [*ROWS, {"problem": "y?", "answer": "!?"}]))
    assert "dropped 1: label that the math reward cannot parse (row 41: '!?')" in done.out
    assert "answers    integer 40" in done.out and "--data.input_key question" in done.out


def test_labels_for_another_reward_stay_on_request(data, write, tmp_path):
    assert data(write("in.jsonl", [{"problem": "y?", "answer": "!?"}]), "--keep-unparsable").status == 0
    assert read(tmp_path / "out.jsonl") == [{"question": "y?", "answer": "!?"}]


def test_prompts_are_measured_by_the_models_tokenizer(data, tmp_path):
    """A question of the testbed is a token a character."""
    train, _ = write_dataset("main", tmp_path / "data", 20, 1, seed=0)
    lengths = sorted(len(row["question"]) for row in read(train))
    done = data(train, "--tokenizer", model_dir("main"), "--max-tokens", lengths[10], "--json")
    said = json.loads(done.out)
    kept = [length for length in lengths if length <= lengths[10]]
    assert (said["training"], said["prompt_tokens"]["longest"]) == (len(kept), kept[-1])
    assert len(said["dropped"].get("prompt too long", [])) == 20 - len(kept)


def test_a_template_that_is_not_there_is_said(data, write):
    done = data(write("in.jsonl", ROWS), "--tokenizer", model_dir("main"), "--apply-chat-template")
    assert done.status == 1 and "this tokenizer has no chat template" in done.err


# ── Refusals ──


def test_a_file_that_exists_is_replaced_on_request_only(data, write, tmp_path):
    (tmp_path / "out.jsonl").write_text("mine")
    source = write("in.jsonl", ROWS)
    done = data(source)
    assert done.status == 1 and "exists: replace it with --force" in done.err
    assert (tmp_path / "out.jsonl").read_text() == "mine"
    assert data(source, "--force").status == 0 and len(read(tmp_path / "out.jsonl")) == 40


def test_what_is_read_is_never_written_over(data, write, tmp_path):
    source = write("in.jsonl", ROWS)
    done = data(source, "--force", out=source)
    assert done.status == 1 and "is also read: write to another file" in done.err
    done = data(tmp_path, "--force", out=source)
    assert done.status == 1 and "is also read: write to another folder" in done.err


def test_a_csv_file_may_have_the_index_of_pandas(data, tmp_path):
    (tmp_path / "in.csv").write_text(",question,answer\n0,7?,007\n")
    assert data(tmp_path / "in.csv").status == 0 and read(tmp_path / "out.jsonl") == [{"question": "7?", "answer": "007"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in.jsonl", "--question", "problm"], "did you mean problem? the columns are problem, solution, answer"),
        (["in.jsonl", "--sample", "41"], "--sample 41: only 40 questions are left"),
        (["in.jsonl", "--extract", "gsm8k"], "nothing is left of 40 rows for --out: 40 no answer"),
        (
            ["in.jsonl", "--held-out", "h.jsonl", "--held-out-share", "0.0001"],
            "for --held-out: with --held-out-share 0.0001 all 40 fell to --out. Give another share, or another --seed",
        ),
        (["in.jsonl", "--held-out", "out.jsonl"], "is the same file as --out"),
        (["in.jsonl", "--held-out-share", "0.1"], "--held-out-share needs --held-out FILE, where these questions go"),
        (["in.jsonl", "--split", "test"], "--config and --split are for data sets on the hub and folders"),
        (["in.jsonl", "--max-tokens", "9"], "need --tokenizer MODEL"),
        (["in.jsonl", "--tokenizer", "no/such/model"], "the tokenizer of no/such/model cannot be loaded"),
        (["in.jsonl", "--held-out", "in.jsonl/h.jsonl"], "in.jsonl cannot be made"),
        (["in.jsonl", "--held-out", "h,o.jsonl"], "h,o.jsonl: a name without commas"),
        (["in.jsonl", "--held-out", "h.txt"], "the name must end in .jsonl or .parquet"),
    ],
)
def test_what_cannot_work_is_said_in_one_message_and_writes_nothing(data, write, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write("in.jsonl", ROWS)
    before = set(tmp_path.iterdir())
    done = data(*words, out="out.jsonl")
    assert done.status == 1 and message in done.err and "Traceback" not in done.err
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (["knoveleng/open-rs"], "load_dataset('knoveleng/open-rs', split='train').to_parquet('open-rs.parquet')"),
        (
            ["openai/gsm8k", "--config", "main", "--split", "te'st"],
            """load_dataset('openai/gsm8k', 'main', split="te'st").to_parquet('gsm8k.parquet')""",
        ),
    ],
)
def test_without_a_network_the_message_names_the_file_to_bring(data, words, called):
    done = data(*words)
    assert done.status == 1
    assert f"{words[0]}: there is no such file or folder here, and the hub did not give it" in done.err
    line = next(line for line in done.err.splitlines() if line.strip().startswith("python"))
    assert shlex.split(line) == ["python", "-c", f"from datasets import load_dataset; {called}"]


def test_a_disk_that_fills_up_leaves_no_half_file(data, write, tmp_path, monkeypatch):
    """The error is raised by the operating system: files of this process may not grow beyond 100 bytes."""
    import resource
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = write("in.jsonl", ROWS)
    assert data(source, out=tmp_path / "first.jsonl").status == 0  # what ``datasets`` keeps of the source is written now
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        done = data(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert done.status == 1 and "out.jsonl cannot be written" in done.err
    assert not list(tmp_path.glob("*out.jsonl*"))


# ── How every command ends ──


def ends(words: list[str], **streams) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "openrlhf_rpo.cli.main", *words], stderr=subprocess.PIPE, **streams)


def test_output_that_nobody_reads_ends_silently(write, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    words = ["data", str(write("in.jsonl", ROWS)), "--out", str(tmp_path / "out.jsonl"), "--question", "problem"]
    done = ends([*words, "--answer", "answer", "--extract", "none"], stdout=writing)
    os.close(writing)
    assert done.returncode == 1 and not any(word in done.stderr for word in (b"Traceback", b"error", b"Broken"))


def test_a_name_that_cannot_be_encoded_is_escaped(data, write, tmp_path):
    name = b"a\xff.jsonl".decode("utf-8", "surrogateescape")
    words = ["data", str(write("in.jsonl", ROWS)), "--out", str(tmp_path / name)]
    done = ends(words, stdout=subprocess.PIPE)
    assert done.returncode == 0 and b"udcff" in done.stdout


def test_an_error_of_the_operating_system_names_the_file(capsys):
    assert guarded(lambda: len(Path("/none/such").read_bytes())) == 1
    assert capsys.readouterr().err == "error: /none/such: No such file or directory\n"
    with pytest.raises(OSError, match="a package's own"):
        guarded(lambda: (_ for _ in ()).throw(OSError("a package's own")))


@pytest.mark.parametrize(("value", "shown"), [(999.4, "999"), (999.5, "1,000"), (-999.7, "-1,000"), (0.12345, "0.123")])
def test_a_number_on_a_terminal_has_no_exponent(capsys, value, shown):
    Output(False).pairs({"n": value})
    assert capsys.readouterr().out.split() == ["n", shown]
