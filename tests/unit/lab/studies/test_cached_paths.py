"""Paths of a run's cache as the subject of a study."""

import contextlib
import json
from argparse import Namespace

import pytest

from lab.studies import continuations
from lab.studies.cuts import parse_cut
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.evaluation.result import read
from openrlhf_rpo.evaluation.session import prepare, training_args
from openrlhf_rpo.run.files import fingerprints
from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit

MODEL = str(model_dir("main"))


@pytest.fixture
def subject(tmp_path):
    data = write_dataset("main", tmp_path / "data", 1, 4, seed=0)[1]
    return prepare(training_args(MODEL, str(data), []))


@pytest.fixture
def make_cache(tmp_path, subject):
    """A cache with paths for these questions, of a run with this tokenizer's fingerprint."""

    def make(question_ids, scores=(0, 1), **marks):
        file = tmp_path / "rpo_cache.db"
        file.unlink(missing_ok=True)
        with PathCache.open(
            f"sqlite:///{file}", fingerprints(subject.args, subject.questions, subject.tokenizer) | marks
        ) as cache:
            ends = zip(question_ids, ("length", "stop"), scores, strict=False)
            paths = [Path(q, (5, 6, 7), (-0.1,) * 3, end, score, score) for q, end, score in ends]
            cache.commit_initial(paths, 6, (0, 2))
            cache.mark_initialised()
        return str(file)

    return make


def take_step(place, question_id, step=1):
    """The question's path gives way to a longer one."""
    visit = Visit(question_id, step, 0, 0, 4, 4, 2, "best")
    path = Path(question_id, (5, 6, 7, 8), (-0.1,) * 4, "stop", 1, 1, step=step)
    with PathCache.open(f"sqlite:///{place}") as cache:
        cache.commit_step(StepRecord(step, 0, 1, {}), [CacheDecision(path, visit)])


def test_questions_with_a_path_are_found(subject, make_cache):
    ids = [q.question_id for q in subject.questions[:2]]
    found = continuations.cached_paths(make_cache(ids), 0, subject.questions, subject.tokenizer)
    assert found == {
        ids[0]: continuations.StoredPath((5, 6, 7), ended=False, score=0),
        ids[1]: continuations.StoredPath((5, 6, 7), ended=True, score=1),
    }


def test_a_cache_of_other_questions_is_refused(subject, make_cache):
    with pytest.raises(UsageError, match="no path for any of these 4 questions"):
        continuations.cached_paths(make_cache(["elsewhere"]), 0, subject.questions, subject.tokenizer)


def test_a_cache_of_another_tokenizer_is_refused(subject, make_cache):
    place = make_cache([subject.questions[0].question_id], tokenizer="0123")
    with pytest.raises(UsageError, match="another tokenizer"):
        continuations.cached_paths(place, 0, subject.questions, subject.tokenizer)


def test_a_place_without_a_cache_is_refused(subject, tmp_path):
    with pytest.raises(UsageError, match="there is no path cache at"):
        continuations.cached_paths(str(tmp_path / "none.db"), 0, subject.questions, subject.tokenizer)


def test_a_cache_without_its_run_s_model_and_data_is_refused():
    with pytest.raises(UsageError, match="--cache needs --model and --data"):
        continuations.settings(Namespace(cache="x", model=None), [parse_cut("50%")])


@pytest.fixture
def study(tmp_path, subject, monkeypatch):
    """Run pathcheck on a cache, without its engines and its samples: its exit status and the lengths of the paths.

    ``meanwhile`` is called while the engines would start.
    """

    def run(place, meanwhile=lambda: None):
        @contextlib.contextmanager
        def opened(args):
            meanwhile()
            yield Namespace(questions=subject.questions, tokenizer=subject.tokenizer, rollout=None)

        def sample(args, rollout, questions, stored, cuts, done):
            at = {"cut": 1, "right": 1, "tokens": 9, "truncated": 0}
            by_cut = {cut.name: at for cut in cuts}
            return {i: {"length": len(path.token_ids), "score": path.score, "by_cut": by_cut} for i, path in stored.items()}

        monkeypatch.setattr(continuations.sampling, "opened", opened)
        monkeypatch.setattr(continuations, "continue_paths", sample)
        monkeypatch.setattr("lab.studies.pathcheck.save_plot", lambda *_, **__: None)
        out, data = tmp_path / "r.json", subject.args.eval.dataset
        status = main(["study", "pathcheck", "--out", str(out), "--model", MODEL, "--data", data, "--cache", place])
        return status, [part["length"] for part in read(out)["parts"].values()]

    return run


def test_a_run_that_goes_on_while_the_engines_start_is_read_where_it_was(study, make_cache, subject):
    [question] = subject.questions[:1]
    place = make_cache([question.question_id])
    assert study(place, lambda: take_step(place, question.question_id)) == (0, [3])


def test_a_cache_that_has_gone_on_is_another_study(study, make_cache, subject, capsys):
    [question] = subject.questions[:1]
    place = make_cache([question.question_id])
    assert study(place) == study(place) == (0, [3])
    take_step(place, question.question_id)
    assert study(place) == (1, [3])
    assert "setting cache_paths is" in capsys.readouterr().err


def test_an_interrupted_study_goes_on_at_its_step_although_the_cache_has_gone_on(study, make_cache, subject, tmp_path):
    ids = [q.question_id for q in subject.questions[:2]]
    place = make_cache(ids)
    assert study(place) == (0, [3, 3])
    [file] = [f for f in tmp_path.rglob("*.json") if '"cache_step"' in f.read_text()]
    finished = json.loads(file.read_text())
    half = finished | {"figures": None, "parts": {ids[0]: finished["parts"][ids[0]]}}
    file.write_text(json.dumps(half))
    take_step(place, ids[1])
    assert study(place) == (0, [3, 3])
    assert json.loads(file.read_text())["settings"] == finished["settings"]


def test_a_cache_of_a_run_that_was_trained_again_is_another_study(study, make_cache, subject, capsys):
    ids = [q.question_id for q in subject.questions[:2]]
    assert study(make_cache(ids)) == study(make_cache(ids)) == (0, [3, 3])
    assert study(make_cache(ids, scores=(1, 1))) == (1, [3, 3])
    assert "setting cache_paths is" in capsys.readouterr().err


def test_each_cut_has_its_own_prefix_for_every_sample():
    path = continuations.StoredPath((1, 2, 3, 4), ended=True, score=1.0)
    prefixes = continuations.prefixes_of(path, [parse_cut("1"), parse_cut("100%")], samples=2)
    assert [tuple(p.token_ids) for p in prefixes] == [(1, 2, 3), (1, 2, 3), (), ()]
    assert [p.cut for p in prefixes] == [1, 1, 4, 4]
