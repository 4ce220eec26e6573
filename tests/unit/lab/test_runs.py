"""Which command a run of a study is, and which folder belongs to it. Training itself: tests/integration/test_studies.py."""

import json
from threading import Event

import psutil
import pytest

from lab.attempt import title_of
from lab.runs import (
    FORMAT,
    Run,
    Stopped,
    StudyError,
    Variant,
    check_folder,
    finished,
    record_of,
    runs_of,
    train,
    training_options,
    without_options,
    words_of,
)
from openrlhf_rpo.run.files import contents_of

COMMAND = ["--actor.model_name_or_path", "m", "--rpo.cut.max", "ratio:0.5", "--ckpt.path", "/elsewhere"]


def last(words: list[str], name: str) -> str:
    return words[len(words) - 1 - words[::-1].index(f"--{name}") + 1]


def made(tmp_path, words=COMMAND, **others) -> Run:
    """A run whose folder says that it was trained on ``words``."""
    run = Run(Variant("a"), 0, tmp_path / "a" / "seed0")
    run.folder.mkdir(parents=True)
    record = {"format": FORMAT, "words": list(words), "data": {"train.jsonl": "1234"}, "seconds": 5.0, **others}
    (run.folder / "run.json").write_text(json.dumps(record))
    return run


def test_a_variant_and_the_run_s_own_folders_win_over_the_command(tmp_path):
    words = words_of(COMMAND, Run(Variant("a", {"rpo.cut.max": "fixed:9", "ckpt.save_hf": True}), 3, tmp_path))
    assert last(words, "rpo.cut.max") == "fixed:9"
    assert last(words, "ckpt.path") == str(tmp_path / "checkpoints")
    assert last(words, "train.seed") == "3"
    assert words[words.index("--ckpt.save_hf") + 1].startswith("--")


def test_seeds_alternate_between_variants_and_every_run_has_a_folder_of_its_own(tmp_path):
    runs = runs_of([Variant("fixed:3, factor:1"), Variant("full path")], [0, 1], tmp_path)
    assert [run.name for run in runs[:2]] == ["fixed:3, factor:1/seed0", "full path/seed0"]
    assert [str(run.folder.relative_to(tmp_path)) for run in runs[::2]] == [
        "fixed-3-factor-1/seed0",
        "fixed-3-factor-1/seed1",
    ]


@pytest.mark.parametrize(
    "pasted",
    [
        ["--", "--a.b", "1"],
        ["--", "python", "-m", "openrlhf_rpo.cli.train_rpo_ray", "--a.b", "1"],
        ["openrlhf-rpo", "train", "--a.b", "1"],
    ],
)
def test_a_pasted_command_is_as_good_as_its_options(pasted):
    assert training_options(pasted) == ["--a.b", "1"]


def test_a_value_that_is_called_train_is_not_a_command():
    assert training_options(["--eval.split", "train", "--a.b", "1"]) == ["--eval.split", "train", "--a.b", "1"]


def test_an_option_goes_with_its_values():
    assert without_options(["--a", "1", "2", "--b", "--c=3", "--d", "-4"], ["a", "c"]) == ["--b", "--d", "-4"]


def test_a_folder_of_the_same_run_is_accepted_wherever_it_lies_now(tmp_path):
    moved = [*COMMAND[:-1], "/moved"]
    run = made(tmp_path)
    check_folder(run, moved, {"train.jsonl": "1234"})
    assert finished(run) and record_of(run)["seconds"] == 5.0


def test_a_folder_of_other_options_is_refused_with_what_differs(tmp_path):
    with pytest.raises(StudyError, match=r"--rpo\.cut\.max was ratio:0\.5, now ratio:1"):
        check_folder(made(tmp_path), [*COMMAND, "--rpo.cut.max", "ratio:1"], {"train.jsonl": "1234"})


def test_a_folder_of_other_data_is_refused_by_name(tmp_path):
    with pytest.raises(StudyError, match=r"other content of train\.jsonl: runs of different data"):
        check_folder(made(tmp_path), COMMAND, {"train.jsonl": "5678"})


def test_a_folder_that_no_study_made_is_left_alone(tmp_path):
    run = Run(Variant("a"), 0, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "rpo_cache.db").touch()
    with pytest.raises(StudyError, match="holds a run that no study made"):
        check_folder(run, COMMAND, {})


@pytest.mark.parametrize("text", ["{", json.dumps({"format": FORMAT + 1}), "[]"])
def test_a_record_of_another_release_is_refused(tmp_path, text):
    run = made(tmp_path)
    (run.folder / "run.json").write_text(text)
    with pytest.raises(StudyError, match="damaged or of another release"):
        check_folder(run, COMMAND, {})


def test_an_unfinished_run_has_no_figures_yet(tmp_path):
    run = made(tmp_path, seconds=None)
    assert not finished(run)
    with pytest.raises(StudyError, match="a/seed0 is unfinished"):
        record_of(run)


def test_a_finished_run_is_not_trained_again(tmp_path):
    run = made(tmp_path)
    before = (run.folder / "run.json").read_text()
    train(run, COMMAND, {"train.jsonl": "1234"}, lambda share, said: None, Event())
    assert (run.folder / "run.json").read_text() == before and not (run.folder / "train.log").exists()


def test_a_command_that_fails_says_where_its_words_are_and_can_be_mended(tmp_path):
    run = Run(Variant("a"), 0, tmp_path / "a")
    with pytest.raises(StudyError, match=r"a/seed0: training ended with status 1.*train\.log"):
        train(run, ["--no.such_option", "1"], {}, lambda share, said: None, Event())
    assert "unknown option --no.such_option" in (run.folder / "train.log").read_text()
    assert not finished(run)


def test_a_run_that_another_thread_stops_ends_with_its_processes_and_is_not_finished(tmp_path):
    run, stop = Run(Variant("a"), 0, tmp_path / "a"), Event()
    stop.set()
    with pytest.raises(Stopped):
        train(run, COMMAND, {}, lambda share, said: None, stop)
    assert not finished(run) and not [p for p in psutil.process_iter() if str(run.folder) in title_of(p)]


def test_data_is_known_by_its_content_and_a_hub_data_set_by_its_name(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_text("a")
    other.write_text("a")
    found = contents_of(f"{one},owner/name", str(other), None)
    assert found[str(one)] == found[str(other)] and found["owner/name"] == "owner/name"
    one.write_text("b")
    assert contents_of(str(one))[str(one)] != found[str(one)]
