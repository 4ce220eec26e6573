"""Result files of studies: whole, resumable, refused by name when they are not this study's."""

import json
import math

import pytest

from openrlhf_rpo.evaluation.result import FORMAT, ResultError, StudyResult, read

SETTINGS = {"questions": 4, "cuts": (1, 2)}


def test_a_finished_part_is_found_again_and_not_missing(tmp_path):
    file = tmp_path / "new" / "result.json"
    StudyResult.open(file, "cuts", SETTINGS).add("a", {"right": 3})
    again = StudyResult.open(file, "cuts", SETTINGS)
    assert again.parts == {"a": {"right": 3}}
    assert again.missing(["b", "a", "c"]) == ["b", "c"]
    assert again.figures is None


def test_a_new_part_takes_the_summary_back(tmp_path):
    result = StudyResult.open(tmp_path / "result.json", "cuts", SETTINGS)
    result.finish({"accuracy": 0.5})
    assert read(result.file)["figures"] == {"accuracy": 0.5}
    result.add("a", 1)
    assert read(result.file)["figures"] is None


def test_the_file_says_what_ran_where(tmp_path):
    result = StudyResult.open(tmp_path / "result.json", "cuts", SETTINGS)
    result.finish({})
    document = read(result.file)
    assert document["format"] == FORMAT and document["study"] == "cuts" and document["settings"]["cuts"] == [1, 2]
    assert document["hardware"]["cores"] >= 1 and "torch" in document["versions"] and document["command"]


@pytest.mark.parametrize(("study", "settings"), [("other", SETTINGS), ("cuts", SETTINGS | {"questions": 5})])
def test_another_study_or_other_settings_are_refused_by_name(tmp_path, study, settings):
    file = tmp_path / "result.json"
    StudyResult.open(file, "cuts", SETTINGS).add("a", 1)
    before = file.read_bytes()
    with pytest.raises(ResultError, match="study is 'cuts'" if study == "other" else "setting questions is 4"):
        StudyResult.open(file, study, settings)
    assert file.read_bytes() == before


def test_another_format_is_refused_with_both_named(tmp_path):
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"format": 7, "study": "cuts"}))
    with pytest.raises(ResultError, match=r"format 7, .* format 1"):
        StudyResult.open(file, "cuts", SETTINGS)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', "\udcff"])
def test_what_is_no_result_is_refused(tmp_path, text):
    file = tmp_path / "result.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResultError, match="result.json"):
        read(file)


def test_a_number_that_is_not_finite_never_reaches_the_file(tmp_path):
    result = StudyResult.open(tmp_path / "result.json", "cuts", SETTINGS)
    result.add("a", 1.0)
    with pytest.raises(ValueError):
        result.add("b", math.nan)
    assert read(result.file)["parts"] == {"a": 1.0}


def test_a_result_that_cannot_be_written_is_an_error_of_the_users(tmp_path):
    (tmp_path / "file").touch()
    result = StudyResult.open(tmp_path / "file" / "r.json", "cuts", SETTINGS)
    with pytest.raises(ResultError, match="r.json cannot be written"):
        result.check_writable()
    with pytest.raises(ResultError, match="r.json cannot be written"):
        result.add("a", 1)
