"""Commands of the studies that train, as far as they go without training: what is refused, and what is reported."""

import json
import shutil
from threading import Barrier
from types import SimpleNamespace

import pytest
from unit.lab.studies.made import made_run, made_step

from lab import training
from lab.runs import FORMAT, Run, StudyError, Variant
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.launch.options import parse

TRAINING_STUDIES = ["tokens", "time", "stability", "large-to-small", "sweep"]
NEEDED = {"sweep": ["--alpha", "0"]}


def study(name: str, out, *words: str) -> int:
    return main(["study", name, "--out", str(out / "result.json"), *NEEDED.get(name, []), *words])


@pytest.mark.parametrize("name", TRAINING_STUDIES)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--finished"], "--finished: no run below"),
        (["--steps", "3"], "--steps 3: an even number"),
        (["--steps", "2", "--", "--actor.adam.lr", "1"], "--steps and --level are for the testbed only"),
        (["--", "--actor.model_name_or_pth", "m"], "did you mean --actor.model_name_or_path?"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_1(tmp_path, capsys, name, words, said):
    assert study(name, tmp_path, *words) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error
    assert not (tmp_path / "result.json").exists()


COMMAND = [
    *("--actor.model_name_or_path", "m", "--data.prompt_dataset", "owner/name", "--rpo.reward.functions", "math"),
    *("--vllm.num_engines", "1", "--algo.advantage.estimator", "group_norm", "--rollout.batch_size", "8"),
    *("--rollout.n_samples_per_prompt", "4", "--train.batch_size", "32", "--train.micro_batch_size", "1"),
    *("--actor.num_gpus_per_node", "1", "--eval.dataset", "owner/other", "--eval.steps", "2"),
]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("tokens", ["--", *COMMAND, "--rpo.enable", "false"], "the study compares RPO with it"),
        ("tokens", ["--", *COMMAND, "--rpo.cache.url", "postgresql+psycopg://a@b/c"], "its own path cache"),
        ("time", ["--", *COMMAND, "--rpo.method", "off"], "nothing would be replayed; leave it out"),
        ("sweep", ["--", *COMMAND, "--eval.steps", "-1"], "give the command --eval.dataset, and --eval.steps above 0"),
        ("tokens", ["--lengths", "half", "--", *COMMAND], "half, factor:1/seed0: --rpo.cut.max half"),
        (
            "time",
            ["--groups", "3", "--", *COMMAND, "--ref.num_gpus_per_node", "1", "--train.micro_batch_size", "16"],
            "RPO, G 3/seed0: --train.batch_size 24",
        ),
        ("time", ["--price", "-1", "--", *COMMAND], "--price is 0 or more"),
        ("sweep", ["--epsilon", "2", "--", *COMMAND], "alpha 0, epsilon 2/seed0: --rpo.update.epsilon 2"),
        ("sweep", ["--parallel", "0", "--", *COMMAND], "--parallel 0: at least 1"),
        (
            "sweep",
            ["--L", "ratio:1", "--", *COMMAND, "--rpo.method", "verify", "--rpo.init.mode", "progressive"],
            "--rpo.cut.max is an option of --rpo.method rpo and paper",
        ),
        ("large-to-small", ["--", *COMMAND], "give either the stronger model with --stronger"),
        ("large-to-small", ["--stronger", "s", "--source", "c", "--", *COMMAND], "or a cache of its paths with --source"),
    ],
)
def test_a_command_that_contradicts_the_study_is_refused_before_a_run(tmp_path, capsys, name, words, said):
    assert study(name, tmp_path, *words) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("given", "cut"), [((), "uniform"), (("--rpo.cut.at", "uncertain"), "uncertain")])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokens", ("--lengths", "fixed:50")),
        ("sweep", ("--L", "ratio:1")),
        ("sweep", ("--epsilon", "0.5")),
        ("large-to-small", ("--source", "paths.parquet")),
    ],
)
def test_what_is_about_the_papers_cut_uses_it_unless_the_command_names_another(
    tmp_path, monkeypatch, name, words, given, cut
):
    jobs, make = [], training._job
    monkeypatch.setattr(training, "_job", lambda *run: jobs.append(make(*run)) or jobs[-1])
    study(name, tmp_path, *words, "--finished", "--", *COMMAND, "--rpo.init.mode", "progressive", *given)
    cuts = {job.run.name: parse(job.words).rpo.cut.at for job in jobs}
    assert cuts and set(cuts.values()) == {cut}


def test_nothing_to_sweep_over_is_refused(tmp_path, capsys):
    assert main(["study", "sweep", "--out", str(tmp_path / "r.json")]) == 1
    assert "nothing to sweep over" in capsys.readouterr().err


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of trained runs, which are as a study leaves them: finished in their folders."""
    names = []

    def instead(run, words, data, report, stop):
        """What ``runs.train`` leaves, without its hours."""
        run.folder.mkdir(parents=True)
        record = {"format": FORMAT, "words": words, "data": data, "seconds": 1.0}
        (run.folder / "run.json").write_text(json.dumps(record))
        names.append(run.name)

    monkeypatch.setattr("lab.training.train", instead)
    return names


def test_figures_that_are_there_are_reported_without_training(tmp_path, capsys, monkeypatch, trained):
    lengths = iter([30.0, 300.0])
    monkeypatch.setattr("lab.training.read_run", lambda *_: made_run(made_step(1, next(lengths))))
    words = ["--steps", "2", "--lengths", "fixed:50"]
    assert study("tokens", tmp_path, *words, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["variants"]["fixed:50, factor:1"]["share"] == pytest.approx(0.1)
    assert (tmp_path / "result.png").stat().st_size > 1000
    assert study("tokens", tmp_path, *words, "--finished") == 0
    assert trained == ["fixed:50, factor:1/seed0", "full path/seed0"]
    assert study("tokens", tmp_path, *words, "--seeds", "0", "1", "--finished") == 0
    assert "unfinished, and left out: fixed:50, factor:1/seed1, full path/seed1" in capsys.readouterr().err


def test_figures_of_other_options_are_refused_though_their_runs_were_removed(tmp_path, capsys, monkeypatch, trained):
    monkeypatch.setattr("lab.training.read_run", lambda *_: made_run(made_step(1, 30.0)))
    assert study("large-to-small", tmp_path, "--steps", "2", "--source", "one.parquet") == 0
    assert len(trained) == 2
    shutil.rmtree(tmp_path / "result")
    assert study("large-to-small", tmp_path, "--steps", "2", "--source", "other.parquet") == 1
    error = capsys.readouterr().err
    assert "result.json holds figures of stronger's cache/seed0 with other options" in error
    assert "--rpo.init.source was one.parquet, now other.parquet" in error and len(trained) == 2


def test_on_the_testbed_the_cut_is_the_papers(tmp_path):
    args = SimpleNamespace(training=[], steps=2, level="main", testbed=(8, "main"), out=tmp_path / "time.json")
    assert training.parsed(training.command_of(args), "the testbed's").rpo.cut.at == "uniform"


def test_runs_are_trained_so_many_at_a_time_and_all_end_when_one_fails(tmp_path, monkeypatch):
    both, begun, stopped = Barrier(2, timeout=30), [], []

    def train(run, words, data, report, stop):
        begun.append(run.seed)
        both.wait()  # goes on only if two runs are at it
        if run.seed == 0:
            raise StudyError("it failed")
        assert stop.wait(30)
        stopped.append(run.seed)

    monkeypatch.setattr(training, "train", train)
    jobs = [training.Job(Run(Variant("a"), seed, tmp_path), [], {}) for seed in range(4)]
    with pytest.raises(StudyError, match="it failed"):
        list(training.in_turn(jobs, at_once=2))
    assert sorted(begun) == [0, 1] and stopped == [1]
