"""``openrlhf-rpo study``: the registry, the shared arguments, and errors in one line."""

import importlib
import json

import pytest

from lab.study import STUDIES, build_parser
from openrlhf_rpo.cli.main import main


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_arguments_and_a_place_for_its_result(name):
    args = build_parser([name]).parse_args([name])
    assert callable(args.run) and args.out.name == f"{name}.json" and args.json is False
    assert importlib.import_module(f"lab.studies.{STUDIES[name][0]}").__doc__


def test_help_lists_every_study(capsys):
    with pytest.raises(SystemExit):
        main(["study", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in STUDIES)


def test_an_unknown_study_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["study", "nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err


def test_a_result_of_other_settings_is_one_line_and_status_1(tmp_path, capsys):
    file = tmp_path / "result.json"
    file.write_text(
        json.dumps({"format": 1, "study": "other", "settings": {}, "command": "c", "parts": {}, "figures": None})
    )
    assert main(["study", "init-time", "--out", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "'other'" in error and "--out" in error


def test_a_model_without_data_is_refused(tmp_path, capsys):
    assert main(["study", "init-time", "--out", str(tmp_path / "r.json"), "--model", "m"]) == 1
    assert "--model and --data belong together" in capsys.readouterr().err
    assert not (tmp_path / "r.json").exists()


def test_a_misspelt_training_option_is_refused_before_anything_starts(tmp_path, capsys):
    assert main(["study", "init-time", "--out", str(tmp_path / "r.json"), "--vllm.num_enginez", "2"]) == 1
    assert "--vllm.num_engines" in capsys.readouterr().err
