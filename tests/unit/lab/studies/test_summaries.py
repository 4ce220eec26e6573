"""From the parts of a study to its figures, worked by hand."""

import importlib
import json
from argparse import Namespace

import numpy as np
import pytest

from lab.plot import save_plot
from lab.studies import init_time, pathcheck, prefix_accuracy, prefix_similarity, sampling
from lab.studies.cuts import parse_cut
from lab.studies.embeddings import mean_cosine, mean_cosine_between
from openrlhf_rpo.evaluation.result import StudyResult


def path(score, **right):
    """A path of 8 tokens and right answers of 8 by cut (``c50=3``: 3 after half of it was cut)."""
    by_cut = {f"{name[1:]}%": {"cut": 4, "right": n, "tokens": 40, "truncated": 1} for name, n in right.items()}
    return {"length": 8, "score": score, "by_cut": by_cut}


def test_accuracy_by_cut_for_right_and_wrong_paths_apart():
    parts = [path(1.0, c50=8, c100=4), path(0.0, c50=0, c100=4), path(0.0, c50=2, c100=4)]
    found = prefix_accuracy.summarize(parts, [parse_cut("50%"), parse_cut("100%")], samples=8)
    assert found["paths"] == {"all paths": 3, "right paths": 1, "wrong paths": 2}
    assert found["all paths"]["50%"]["mean"] == pytest.approx(10 / 24, abs=1e-4)
    assert found["right paths"]["50%"]["mean"] == 1
    assert found["wrong paths"]["50%"]["mean"] == 0.125
    assert found["all paths"]["100%"]["generated_tokens"] == 5 and found["all paths"]["100%"]["truncated"] == 0.125


def test_a_kind_of_path_that_does_not_occur_has_no_figures():
    found = prefix_accuracy.summarize([path(1.0, c50=8)], [parse_cut("50%")], samples=8)
    assert "wrong paths" not in found and found["paths"]["wrong paths"] == 0


@pytest.mark.parametrize(
    ("there", "bare", "called"), [(0, 8, True), (0, 1, False), (8, 8, False), (0, 0, False), (2, 7, True)]
)
def test_a_prefix_is_poisoned_when_luck_does_not_explain_its_failures(there, bare, called):
    assert pathcheck.poisoned(path(0.0, c25=there, c100=bare), 75, 8) is called


def test_poisoned_share_and_change_against_the_bare_question():
    parts = [path(0.0, c25=0, c100=8), path(1.0, c25=8, c100=4)]
    found = pathcheck.summarize(parts, [75], samples=8)
    assert found["all paths"]["75%"]["poisoned"] == 0.5 and found["all paths"]["75%"]["change"] == -0.25
    assert found["wrong paths"]["75%"]["poisoned"] == 1 and found["right paths"]["75%"]["poisoned"] == 0
    assert found["all paths"]["0%"]["mean"] == 0.75 and found["all paths"]["0%"]["change"] == 0


def test_on_the_testbed_the_test_is_held_against_the_steps():
    parts = [path(0.0, c25=0, c100=8), path(0.0, c25=0, c100=1), path(1.0, c25=8, c100=4)]
    for part, mistake in zip(parts, (True, True, False), strict=True):
        for at in part["by_cut"].values():
            at["mistake"] = mistake
    found = pathcheck.summarize(parts, [75], samples=8)["all paths"]["75%"]
    assert found["with_mistake"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["poisoned_of_mistaken"] == 0.5 and found["poisoned_of_sound"] == 0


def test_a_mistake_counts_once_its_line_is_complete():
    from lab.studies.continuations import holds_mistake

    question = "b12+30?"  # b12+30=42, then a30+42=72
    right, wrong = "b12+30=42\n", "b12+30=43\n"
    assert not holds_mistake(question, "") and not holds_mistake(question, right) and not holds_mistake(question, wrong[:-1])
    assert holds_mistake(question, wrong)
    assert not holds_mistake(question, right + "a30+42=72\n\\boxed{4272}")
    assert holds_mistake(question, right + "a30+42=71\n\\boxed{4271}")


def test_similarity_of_questions_without_long_answers_is_left_out():
    pair = {"same": 0.9, "other": 0.5}
    parts = [
        {"long_enough": 4, "heads": {"8": pair}, "endings": {"50%": pair}},
        {"long_enough": 0, "heads": {"8": {"same": None, "other": None}}, "endings": {"50%": {"same": 0.7, "other": 0.5}}},
    ]
    found = prefix_similarity.summarize(parts)
    assert found["heads"]["8"]["questions"] == 1 and found["heads"]["8"]["mean"] == 0.9
    assert found["endings"]["50%"]["mean"] == pytest.approx(0.8) and found["endings"]["50%"]["other_questions"] == 0.5


def test_the_mean_cosine_is_the_paper_s_sum_over_pairs():
    vectors = np.random.default_rng(0).normal(size=(5, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [vectors[i] @ vectors[j] for i in range(4) for j in range(i + 1, 5)]
    assert mean_cosine(vectors) == pytest.approx(2 / (5 * 4) * sum(pairs))
    between = [a @ b for a in vectors[:2] for b in vectors[2:]]
    assert mean_cosine_between(vectors[:2], vectors[2:]) == pytest.approx(np.mean(between))
    with pytest.raises(ValueError, match="no pair"):
        mean_cosine(vectors[:1])


def test_time_is_scaled_to_the_paper_s_questions():
    part = {"start_seconds": 9.0, "seconds": 60.0, "questions": 700, "tokens": 6000, "rewarded": 3, "truncated": 0}
    found = init_time.figures(part)
    assert (found["minutes_for_7000_questions"], found["tokens_per_second"]) == (10, 100)


def test_a_picture_lies_beside_its_result(tmp_path):
    file = save_plot(tmp_path / "a.json", lambda figure, axes: axes.plot([1, 2], label="x"))
    assert file == tmp_path / "a.png" and file.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_figures_are_kept_and_the_picture_is_missed(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    assert save_plot(tmp_path / "a.json", lambda figure, axes: None) is None
    assert "matplotlib is not installed" in capsys.readouterr().err


def test_the_summary_is_shown_as_tables_or_as_one_document(tmp_path, capsys):
    result = StudyResult.open(tmp_path / "r.json", "pathcheck", {})
    result.finish({"paths": {"all paths": 2}, "all paths": {"75%": {"mean": 0.5, "other": None}}, "seconds": 3})
    sampling.show(Namespace(json=True), result)
    assert json.loads(capsys.readouterr().out) == result.figures
    sampling.show(Namespace(json=False), result)
    shown = capsys.readouterr().out
    assert "75%" in shown and "0.5" in shown and "r.json" in shown


PARTS = {
    "prefix_accuracy": [path(1.0, c50=8, c100=4), path(0.0, c50=0, c100=4)],
    "pathcheck": [path(1.0, c50=8, c100=4), path(0.0, c50=0, c100=4)],
    "prefix_similarity": [
        {"long_enough": 2, "heads": {"8": {"same": 0.9, "other": None}}, "endings": {"50%": {"same": 0.9, "other": 0.5}}}
    ],
}


@pytest.mark.parametrize("name", PARTS)
def test_every_study_draws_what_it_found(name, tmp_path):
    study = importlib.import_module(f"lab.studies.{name}")
    more = {"prefix_accuracy": ([parse_cut("50%"), parse_cut("100%")], 8), "pathcheck": ([50], 8)}.get(name, ())
    figures = study.summarize(PARTS[name], *more)
    drawn = []

    def draw(figure, axes):
        study._draw(axes, figures)
        drawn.extend(len(axis.lines) for axis in axes)

    assert save_plot(tmp_path / "a.json", draw, panels=2).stat().st_size > 10_000
    assert drawn == ([1, 2] if name == "prefix_similarity" else [3, 3])
