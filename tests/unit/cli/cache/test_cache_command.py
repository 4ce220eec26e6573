"""``openrlhf-rpo cache`` as a person and as a program meet it, on a real cache of the testbed's tokenizer."""

import json
import shutil
from functools import partial
from pathlib import Path as File

import pytest
from datasets import load_dataset
from rich.text import Text

from lab.testbed import model_dir
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.cache import look
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.console import Output, visible
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.tables import read_rows
from openrlhf_rpo.types import UNKNOWN, CacheDecision, Part, Path, Question, StepRecord, Visit

TEXTS = ["1+1=2\n\\boxed{2}", "2+2=4\n\\boxed{4}"]
QUESTIONS = [Question("aa01", "1+1?", "2", text="1+1?"), Question("ab02", "2+2?", "4", text="2+2?")]


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(str(model_dir("main")), offline=True)


@pytest.fixture
def folder(tmp_path, tokenizer) -> File:
    """Two questions in C(0), of 16 tokens each; step 1 keeps 4 of the first one's and adds 16; step 2 changes nothing."""

    def ids(text):
        return (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)

    def visit(question, step, outcome):
        return Visit(question, step, 12, 4, 16, 4, 2, outcome)

    url = f"sqlite:///{tmp_path}/run/rpo_cache.db"
    with PathCache.open(url, {"tokenizer": tokenizer_fingerprint(tokenizer)}) as cache:
        cache.describe(QUESTIONS, str(model_dir("main")))
        cache.commit_initial(
            [Path(q.question_id, ids(t), None, "stop", 1.0, 1.0) for q, t in zip(QUESTIONS, TEXTS, strict=True)]
        )
        cache.mark_initialised()
        parent = cache.paths(["aa01"])["aa01"].path_id
        new = Path("aa01", ids("1+1=3-1=2 \\boxed{2}"), None, "stop", 1.0, 0.5, 4, 1, parent_id=parent)
        cache.commit_step(
            StepRecord(1, 0, 1, {"rpo/cache/replaced": 1.0, "rpo/tokens_generated_total": 80.0}),
            [CacheDecision(new, visit("aa01", 1, "best"))],
        )
        cache.commit_step(
            StepRecord(2, 0, 2, {"rpo/cache/replaced": 0.0, "rpo/tokens_generated_total": 90.0}),
            [CacheDecision(None, visit("aa01", 2, "no_rewarded_sample"))],
        )
    return tmp_path / "run"


@pytest.fixture
def cache(folder, capsys):
    """Run a sub-command on the cache: its exit status, its output, its errors."""

    def run(name, *words, place=folder):
        status = main(["cache", name, str(place), *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def document(cache):
    """The sub-command's JSON, of one that ends well."""

    def run(name, *words):
        status, out, _ = cache(name, *words, "--json")
        assert status == 0
        return json.loads(out)

    return run


def test_info_says_what_a_cache_holds(document, cache):
    told = document("info")
    assert (told["latest_step"], told["questions"], told["questions_with_a_path"]) == (2, 2, 2)
    assert told["initial_cache_complete"] is True and told["tokens_generated"] == 90.0 and told["bytes"] > 0
    assert told["model"] == str(model_dir("main")) and "tokenizer" in told["fingerprints"]
    _, out, _ = cache("info")
    assert "questions with a path" in out


def test_a_cache_is_a_folder_a_file_or_a_url(cache, folder):
    for place in (folder, folder / "rpo_cache.db", f"sqlite:///{folder}/rpo_cache.db"):
        assert cache("info", place=place)[0] == 0
    status, out, err = cache("info", place=folder / "none")
    assert (status, out) == (1, "") and err.startswith("error: there is no path cache at") and not (folder / "none").exists()


def test_reading_works_beside_the_run_that_writes(document, folder):
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db"):
        assert document("info")["latest_step"] == 2
        assert len(document("show", "aa01")["parts"]) == 2


def test_show_tells_each_parts_step_the_lineage_and_what_was_dropped(document):
    told = document("show", "aa01")
    assert [(p["step"], p["from"], p["to"], p["text"]) for p in told["parts"]] == [
        (0, 0, 4, "1+1="),
        (1, 4, 20, "3-1=2 \\boxed{2}<eos>"),
    ]
    assert [(g["step"], g["length"], g["kept"], g["cut"], g["new"]) for g in told["lineage"]] == [
        (1, 20, 4, 12, 16),
        (0, 16, 0, None, 16),
    ]
    assert told["dropped"]["text"] == "2\n\\boxed{2}<eos>"
    assert (told["question"], told["label"]) == ("1+1?", "2")
    assert [p["step"] for p in document("show", "aa01", "--step", 0)["parts"]] == [0]


def test_show_prints_the_same_for_people(cache):
    _, out, _ = cache("show", "aa01")
    assert "tokens 0 to 3, of step 0" in out and "1+1=" in out and "dropped from the path of step 0" in out


def test_show_says_which_policies_sampled_a_path(cache, document, folder):
    assert "sampled by" not in cache("show", "aa01")[1] and document("show", "aa01")["versions"] == []
    parts = (Part(UNKNOWN, 1), Part(12, 340), Part(13, 20))
    new = Path("aa01", (5,) * 361, None, "length", 1.0, 1.0, 0, 3, parts=parts)
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as opened:
        opened.commit_step(StepRecord(3, 0, 3, {}), [CacheDecision(new, Visit("aa01", 3, 0, 0, 3, 4, 2, "best"))])
    assert "sampled by policy version unknown (1 tokens), 12 (340), 13 (20)\n" in cache("show", "aa01")[1]
    assert document("show", "aa01")["versions"][1] == {"version": 12, "n_tokens": 340}


def test_show_lists_the_paths_that_are_kept_beside_the_questions_own(cache, document, folder, tokenizer):
    wrong = Path("aa01", (5, 6, 7), None, "length", 0.0, 0.0, 0, 3, slot=1)
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as opened:
        visit = Visit("aa01", 3, 0, 0, 3, 4, 2, "best")
        opened.commit_step(StepRecord(3, 0, 3, {}), [CacheDecision(None, visit, (wrong,))])
    assert document("show", "aa01")["others"] == [{"slot": 1, "step": 3, "length": 3, "score": 0.0, "reward": 0.0}]
    assert document("show", "aa01", "--step", 2)["others"] == []
    assert "other stored paths" in cache("show", "aa01")[1]


@pytest.mark.parametrize("name", ["aa01", "aa", "1+1?", "1+1"])
def test_a_question_is_named_by_its_id_a_beginning_or_its_text(document, name):
    assert document("show", name)["question_id"] == "aa01"


def test_a_question_that_is_unknown_or_not_clear_is_said(cache):
    status, _, err = cache("show", "a")
    assert status == 1 and "'a' fits 2 questions" in err and "ab02  '2+2?'" in err
    status, _, err = cache("show", "9+9?")
    assert status == 1 and "no question of this cache has the id or text '9+9?'" in err


def test_without_the_tokenizer_ids_are_shown_and_it_says_so(cache, folder, tokenizer):
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as opened:
        opened.describe(QUESTIONS, "/gone/model")
        ids = opened.paths(["aa01"])["aa01"].token_ids
    status, out, err = cache("show", "aa01")
    assert status == 0 and " ".join(map(str, ids[:4])) in out and "1+1=" not in out
    assert "/gone/model cannot be loaded" in err and "Token ids are shown" in err
    status, out, err = cache("show", "aa01", "--tokenizer", model_dir("main"))
    assert status == 0 and "1+1=" in out and err == ""


def test_another_models_tokenizer_is_refused(cache, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (model / name).write_text((model_dir("main") / name).read_text().replace('"z"', '"Z"'))
    status, _, err = cache("show", "aa01", "--tokenizer", model)
    assert status == 1 and "has another tokenizer than the cached paths" in err


def test_names_never_command_the_terminal_either(capsys):
    """A cache of anyone's may have any fingerprints."""
    Output(as_json=False).pairs({"fingerprints": {"da\x1b[31mta": "x"}})
    assert "da\\x1b[31mta x" in capsys.readouterr().out


def test_text_never_commands_the_terminal(cache, folder):
    hostile = "\x1b[2J[bold red]x[/] \u202e\x07\r"
    assert visible(hostile) == "\\x1b[2J[bold red]x[/] \\u202e\\x07\\r"
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as opened:
        opened.describe([Question("aa01", hostile, hostile, text=hostile)], str(model_dir("main")))
    for words in (("show", "aa01"), ("diff", 0, 1), ("show", "a")):
        _, out, err = cache(*words)
        assert not set("\x1b\u202e\x07\r") & set(out + err)
    _, out, _ = cache("show", "aa01")
    assert "[bold red]x[/]" in out


def test_history_is_every_visit(document, cache):
    visits = document("history", "aa01")["visits"]
    assert [(v["step"], v["cut"], v["outcome"]) for v in visits] == [(1, 12, "best"), (2, 12, "no_rewarded_sample")]
    assert "no_rewarded_sample" in cache("history", "aa01")[1]


@pytest.mark.parametrize("columns", [40, 80])
def test_no_word_of_a_table_is_broken_on_a_narrow_terminal(folder, monkeypatch, capsys, columns):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["cache", "history", str(folder), "aa01"]) == 0
    shown = Text.from_ansi(capsys.readouterr().out).plain.split()
    assert {"prefix", "length", "rewarded", "outcome", "asked", "no_rewarded_sample"} <= set(shown)


def test_without_standard_output_and_input_nothing_is_written_and_nothing_asked(folder, monkeypatch, capsys):
    """As with ``>&-`` and ``<&-``."""
    with monkeypatch.context() as closed:
        closed.setattr("sys.stdout", None)
        assert main(["cache", "stats", str(folder)]) == 0
    monkeypatch.setattr("sys.stdin", None)
    assert main(["cache", "rollback", str(folder), "1"]) == 1
    assert "Say so with --yes" in capsys.readouterr().err


def test_stats_are_by_step(document, cache):
    steps = document("stats")["steps"]
    assert [(s["step"], s["paths"], s["length"], s["age"], s["replaced"]) for s in steps] == [
        (0, 2, 16.0, 0.0, None),
        (1, 2, 18.0, 0.5, 1.0),
        (2, 2, 18.0, 1.5, 0.0),
    ]
    assert "replaced" in cache("stats")[1]


def test_diff_names_what_changed(document, cache):
    told = document("diff", 0, 2)
    assert (told["replaced"], told["added"], told["removed"], told["same"]) == (1, 0, 0, 1)
    [change] = told["changed"]
    assert (change["question_id"], change["before"]["step"], change["after"]["step"]) == ("aa01", 0, 1)
    assert "16 > 20" in cache("diff", 0, 2)[1]
    status, _, err = cache("diff", 0, 7)
    assert status == 1 and "step 7: this cache can be read from step 0 to step 2" in err


def test_a_checkpoints_step_can_be_read_behind_those_that_were_pruned(cache, document, folder):
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as written:
        written.prune(2, [0])
    assert document("diff", 0, 2)["replaced"] == 1
    status, _, err = cache("diff", 1, 2)
    assert status == 1 and "step 1: this cache can be read from step 2 to step 2, and at step 0" in err
    assert document("prune", 0, "--yes") == {"readable_from_step": 2, "removed_paths": 0}


@pytest.mark.parametrize(("name", "kind"), [("out.parquet", "parquet"), ("out.jsonl", "json")])
def test_an_export_loads_with_datasets(document, tmp_path, name, kind):
    file = tmp_path / name
    told = document("export", file)
    assert (told["paths"], told["with_text"], told["step"]) == (2, True, 2)
    data = load_dataset(kind, data_files=str(file), split="train", cache_dir=str(tmp_path / "datasets"))
    assert data["text"][:] == ["1+1=3-1=2 \\boxed{2}", TEXTS[1]]
    assert (data[0]["question"], data[0]["label"], data[0]["prefix_length"], data[0]["step"]) == ("1+1?", "2", 4, 1)
    document("export", file, "--step", 0, "--yes")
    data = load_dataset(kind, data_files=str(file), split="train", cache_dir=str(tmp_path / "datasets"))
    assert data["text"][:] == TEXTS


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
def test_an_export_has_the_paths_of_every_slot(document, folder, tmp_path, name):
    others = tuple(Path("aa01", (5, 6, 7), None, "length", 0.0, 0.0, 0, 3, slot=slot) for slot in (2, 1))
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db") as opened:
        opened.commit_step(StepRecord(3, 0, 3, {}), [CacheDecision(None, Visit("aa01", 3, 0, 0, 3, 4, 2, "best"), others)])
    assert document("export", tmp_path / name)["paths"] == 4
    rows = list(read_rows(tmp_path / name))
    assert [(row["question_id"], row["slot"], row["step"]) for row in rows] == [
        ("aa01", 0, 1),
        ("aa01", 1, 3),
        ("aa01", 2, 3),
        ("ab02", 0, 0),
    ]


def test_what_removes_or_replaces_asks_first(cache, document, tmp_path, folder):
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    for words in (("rollback", 1), ("prune", 1), ("export", file)):
        status, _, err = cache(*words)
        assert status == 1 and "Say so with --yes" in err
    assert document("info")["latest_step"] == 2 and document("info")["readable_from_step"] == 0
    assert file.read_text() == "mine"


def test_a_name_that_cannot_be_written_is_refused_before_anything_is_asked(cache, tmp_path):
    (tmp_path / "out").mkdir()
    status, _, err = cache("export", tmp_path / "out")
    assert status == 1 and "out: the name must end in .parquet, .jsonl or .json" in err and "--yes" not in err


def test_a_tokenizer_that_the_libraries_do_not_understand_is_as_good_as_none(cache, folder, tmp_path):
    model = tmp_path / "newer"
    shutil.copytree(model_dir("main"), model)
    content = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps(content | {"normalizer": {"type": "OfALaterVersion"}}))
    status, _, err = cache("show", "aa01", "--tokenizer", model)
    assert status == 1 and f"the tokenizer of {model} cannot be loaded: " in err


def test_rollback_prune_and_vacuum(document):
    assert document("prune", 1, "--yes") == {"readable_from_step": 1, "removed_paths": 1}
    assert document("vacuum")["bytes_after"] > 0
    assert document("rollback", 1, "--yes") == {"step": 1, "removed_steps": 1}
    assert document("info")["latest_step"] == 1
    parts = document("show", "aa01")["parts"]
    assert [(p["step"], p["from"], p["to"]) for p in parts] == [(None, 0, 4), (1, 4, 20)]  # its parent was pruned


def test_writing_beside_a_run_is_refused(cache, folder):
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db"):
        status, _, err = cache("rollback", 1, "--yes")
    assert status == 1 and "is in use by process" in err


def test_verify_names_what_is_damaged(cache, folder):
    assert cache("verify")[0] == 0
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{folder}/rpo_cache.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE paths SET token_ids = x'01ff' WHERE question_id = 'ab02'")
    engine.dispose()
    status, out, _ = cache("verify", "--json")
    assert status == 1 and "question ab02" in json.loads(out)["damages"][0]


def test_rows_are_counted_also_without_a_progress_bar(document, monkeypatch):
    n_rows = document("verify")["rows"]
    monkeypatch.setattr(look, "tqdm", partial(look.tqdm, disable=True))  # as TQDM_DISABLE=1
    assert document("verify")["rows"] == n_rows > 0


@pytest.mark.parametrize(
    "words", [["cache"], ["cache", "shwo"], ["cache", "diff", "x", "1"], ["cache", "info", "x", "--nonsense"]]
)
def test_a_wrong_command_ends_with_status_1_and_names_its_help(words, capsys):
    assert main(words) == 1
    assert "(see openrlhf-rpo" in capsys.readouterr().err
