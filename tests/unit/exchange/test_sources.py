"""Sources of an imported initial cache, and matching of their questions and texts."""

import json
from dataclasses import replace

import pytest

from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.exchange.matching import QuestionIndex, question_text
from openrlhf_rpo.exchange.portable import SCHEMA, PortablePath, to_row
from openrlhf_rpo.exchange.sources import DatabaseSource, ExportSource, SolutionsSource, parse_source
from openrlhf_rpo.exchange.text import path_ids, path_text, pieces
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.tables import write_rows
from openrlhf_rpo.types import CacheDecision, Question, StepRecord, Visit

from .conftest import QUESTIONS, TEXTS


def jsonl(file, *rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


# ── Which source a name means ──


def test_a_folder_a_file_and_a_url_mean_the_same_database(filled, url):
    folder = url.removeprefix("sqlite:///").removesuffix("/rpo_cache.db")
    for name in (folder, f"{folder}/rpo_cache.db", url):
        for step, suffix in ((None, ""), (1, "@1")):
            source = parse_source(name + suffix, "question", None)
            assert isinstance(source, DatabaseSource) and (source.url, source.step) == (url, step)


def test_a_name_that_exists_is_no_step_of_another(tmp_path):
    (tmp_path / "run@2").mkdir()
    source = parse_source(f"{tmp_path}/run@2", "question", None)
    assert (source.url, source.step) == (f"sqlite:///{tmp_path}/run@2/rpo_cache.db", None)
    assert parse_source(f"{tmp_path}/run@2@3", "question", None).step == 3


def test_a_file_is_an_export_and_with_a_column_a_data_set(tmp_path):
    export = jsonl(tmp_path / "a.jsonl", {"question": "1+1?", "text": "2", "solution": "3"})
    assert isinstance(parse_source(export, "question", None), ExportSource)
    assert isinstance(parse_source(f"{export}:solution", "question", None), SolutionsSource)


def test_what_is_not_there_is_said(tmp_path, filled, url):
    for name in (f"{tmp_path}/none", f"{tmp_path}/none.parquet", f"{tmp_path}/none.jsonl:solution"):
        with pytest.raises(ExchangeError, match="there is no file"):
            parse_source(name, "question", None)
    with pytest.raises(ExchangeError, match="ends at step 1: there is no step 9"):
        list(parse_source(f"{url}@9", "question", None).checked("any"))
    data = jsonl(tmp_path / "a.jsonl", {"question": "1+1?", "worked": "2"})
    with pytest.raises(ExchangeError, match="no column token_ids or text.* question, worked.*a.jsonl:COLUMN"):
        parse_source(data, "question", None)
    with pytest.raises(ExchangeError, match="no column 'solution'; its columns are question, worked"):
        parse_source(f"{data}:solution", "question", None)
    with pytest.raises(ExchangeError, match="no column 'problem'"):
        parse_source(f"{data}:worked", "problem", None)
    for name in ("train.csv", "train.xyz"):
        (tmp_path / name).write_text("question,worked\n")
        with pytest.raises(ExchangeError, match=rf"worked solutions are read from \.parquet, .* files: convert .*{name}"):
            parse_source(f"{tmp_path}/{name}:worked", "question", None)


# ── Databases ──


def test_a_database_gives_its_paths_as_they_were_at_a_step(filled, url, tokenizer):
    own = tokenizer_fingerprint(tokenizer)
    at_0 = {p.question_id: p for p in DatabaseSource(url, 0).paths(own)}
    now = {p.question_id: p for p in DatabaseSource(url, None).paths(own)}
    assert at_0.keys() == now.keys() == {"id0", "id1", "id2", "id3"}
    assert path_text(at_0["id1"].token_ids, tokenizer) == TEXTS[1] != path_text(now["id1"].token_ids, tokenizer)
    assert tuple(at_0["id1"].log_probs) == (-0.5,) * len(at_0["id1"].token_ids) and now["id1"].log_probs is None
    assert (now["id1"].score, now["id1"].reward, now["id1"].question, now["id1"].label) == (1.0, 0.5, "1+1?", "2")
    assert all(p.text is None for p in now.values())  # not decoded needlessly


@pytest.fixture
def with_slots(filled):
    """Step 2 stores a wrong path of question 1 in slot 3, then in slot 2 a right one."""
    path = filled.paths(["id1"], 0)["id1"]
    new = [replace(path, slot=slot, step=2, score=score, path_id=None) for slot, score in ((3, 0.0), (2, 1.0))]
    filled.commit_step(StepRecord(2, 0, 3, {}), [CacheDecision(None, Visit("id1", 2, 0, 0, 16, 4, 1, "best"), tuple(new))])
    return filled


def test_a_database_gives_the_paths_of_every_slot_by_question_and_slot(with_slots, url, tokenizer):
    own = tokenizer_fingerprint(tokenizer)
    slots = [("id0", 0), ("id1", 0), ("id1", 2), ("id1", 3), ("id2", 0), ("id3", 0)]
    assert [(p.question_id, p.slot) for p in with_slots.iter_paths()] == slots
    paths = list(DatabaseSource(url, None).paths(own))
    assert [p.question_id for p in paths] == [question_id for question_id, _ in slots]
    assert [p.score for p in paths] == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert paths[3].where.endswith("question id1, slot 3") and paths[1].where.endswith("question id1")
    assert len(list(DatabaseSource(url, 1).paths(own))) == 4  # before the others were stored


def test_for_another_tokenizer_a_database_gives_text(filled, url, other_tokenizer):
    paths = list(DatabaseSource(url, 0).paths(tokenizer_fingerprint(other_tokenizer)))
    assert [p.text for p in paths] == TEXTS


def test_a_database_that_cannot_be_decoded_says_how_to_go_on(filled, url):
    filled.describe(QUESTIONS, "/gone/model")
    with pytest.raises(ExchangeError, match="/gone/model cannot be loaded.*openrlhf-rpo cache export"):
        list(DatabaseSource(url, None).paths("another"))


# ── Files ──


def test_an_export_without_text_cannot_serve_another_tokenizer(tmp_path, filled):
    rows = [to_row(path, None, None, "theirs") for path in filled.iter_paths()]
    write_rows(tmp_path / "a.parquet", rows, SCHEMA)
    source = ExportSource(tmp_path / "a.parquet")
    assert len(list(source.paths("theirs"))) == 4
    with pytest.raises(ExchangeError, match="row 1: its paths have another tokenizer.*--tokenizer MODEL"):
        list(source.paths("ours"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "1+1?"}, "row 2: it has neither text nor token_ids"),
        ({"token_ids": [5, 1]}, "row 2: it has token_ids, but neither text nor tokenizer"),
        ({"token_ids": [5, 1], "tokenizer": "theirs"}, "row 2: its paths have another tokenizer"),
    ],
)
def test_a_row_that_no_run_can_read_says_what_it_lacks(tmp_path, row, message):
    source = ExportSource(tmp_path / jsonl(tmp_path / "a.jsonl", {"text": "2", "token_ids": [5, 1]}, row))
    with pytest.raises(ExchangeError, match=message):
        list(source.paths("ours"))


def test_worked_solutions_come_with_their_question_and_label(tmp_path):
    rows = [{"q": "1+1?", "a": 2, "w": "2"}, {"q": "2+2?", "a": 4, "w": None}]
    source = SolutionsSource(tmp_path / jsonl(tmp_path / "a.jsonl", *rows), "w", "q", "a")
    assert [(p.question, p.label, p.text) for p in source.paths("any")] == [("1+1?", "2", "2"), ("2+2?", "4", "")]


def test_any_row_may_be_the_first_with_a_column(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", {"q": "1+1?"}, {"q": "2+2?", "a": 4, "w": "2+2=4"})
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "a.jsonl").read_bytes())
    assert [(p.label, p.text) for p in parse_source(f"{file}:w", "q", "a").paths("any")] == [(None, ""), ("4", "2+2=4")]


# ── Matching ──


@pytest.fixture
def index():
    born = Question("id8", "<u>when?", "2020-01-03", text="when?")
    return QuestionIndex([*QUESTIONS, Question("id9", "<u>1+1?", "two", text="1+1?"), born])


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (PortablePath(question_id="id2"), "id2"),
        (PortablePath(question_id="id2", question="3+3?", label="6"), "id2"),
        (PortablePath(question_id="unknown", question="3+3?", label="6"), "id3"),
        (PortablePath(question="<u>3+3?", label="6"), "id3"),
        (PortablePath(question="1+1?", label="two"), "id9"),
        (PortablePath(question="3+3?", label="6.0"), "id3"),  # as ``datasets`` reads 6 beside 6.5
        (PortablePath(question="when?", label="2020-01-03T00:00:00"), "id8"),  # a label 2020-01-03 of JSON is read as that
        (PortablePath(question="when?", label="2020-01-03 10:30:00"), None),
        (PortablePath(question="3+3?"), "id3"),
        (PortablePath(question="3+3?", label=""), "id3"),  # of a run without labels
        (PortablePath(question="1+1?", label=""), None),
        (PortablePath(question="1+1?"), None),  # two questions have this text
        (PortablePath(question="3+3?", label="7"), None),
        (PortablePath(question_id="unknown"), None),
    ],
)
def test_a_path_is_matched_by_id_then_by_text_and_label_then_by_text_alone(index, path, found):
    question = index.find(path)
    assert (question.question_id if question is not None else None) == found


def test_the_text_of_a_chat_is_that_of_its_messages():
    assert (
        question_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]) == "Be brief.\n1+1?"
    )
    assert question_text("1+1?") == "1+1?"


# ── Text ──


def test_text_and_ids_are_inverse_under_any_tokenizer(tokenizer, other_tokenizer):
    for text in TEXTS:
        for t in (tokenizer, other_tokenizer):
            ids = path_ids(text, "stop", t)
            assert ids[-1] == t.eos_token_id and path_text(ids, t) == text
            assert path_ids(text, "length", t) == ids[:-1]
    assert path_ids(TEXTS[1], "stop", tokenizer) != path_ids(TEXTS[1], "stop", other_tokenizer)


def test_a_text_that_ends_in_the_end_token_gets_no_second_one(tokenizer):
    assert path_ids(TEXTS[1] + tokenizer.eos_token, "stop", tokenizer) == path_ids(TEXTS[1], "stop", tokenizer)


def test_pieces_are_the_text_in_parts(tokenizer):
    ids = path_ids(TEXTS[2], "stop", tokenizer)
    parts = pieces(ids, [3, 3, 7, len(ids)], tokenizer)
    assert "".join(parts) == TEXTS[2] + tokenizer.eos_token
    assert [len(part) for part in parts[:3]] == [3, 0, 4]
