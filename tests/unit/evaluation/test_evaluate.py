"""``openrlhf-rpo eval`` up to the start of the engines: what is refused, what is read, and what is shown."""

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cli import evaluate as command
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.console import Output
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.evaluation import sample
from openrlhf_rpo.evaluation.benchmarks import BENCHMARKS, rows
from openrlhf_rpo.evaluation.figures import summary
from openrlhf_rpo.evaluation.result import ResultError, StudyResult
from openrlhf_rpo.evaluation.results import show
from openrlhf_rpo.evaluation.session import prepare, session, training_args
from openrlhf_rpo.rollout.rollout import Sampling
from openrlhf_rpo.types import Group

MODEL = str(model_dir("main"))
SETTINGS = {"questions": "q", "temperature": 1.0, "top_p": 1.0, "max_tokens": None, "max_len": 768, "reward": "math"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Offline, also where these modules were loaded before: they read the environment once."""
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def data(tmp_path):
    return str(write_dataset("main", tmp_path / "data", 1, 8, seed=0)[1])


def result(file, scores, settings=SETTINGS, finish=True):
    """A result file: question -> its scores."""
    made = StudyResult.open(file, "eval", settings)
    made.add_all({q: {"scores": s, "tokens": [5] * len(s), "truncated": [False] * len(s)} for q, s in scores.items()})
    if finish:
        made.finish(summary(list(made.parts.values()), 1, [1]))
    return str(file)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no model"),
        (["--data", "DATA", MODEL], "name a model folder before all options"),
        ([MODEL], "--data is missing"),
        ([MODEL, "--data", "nowhere.jsonl"], "nowhere.jsonl: there is no such file, and the benchmarks are aime24"),
        ([MODEL, "--data", "DATA", "--pass-k", "8"], "--pass-k 8 needs as many samples"),
        ([MODEL, "--data", "DATA", "--temperature", "0", "--samples", "4"], "--temperature 0 is greedy"),
        ([MODEL, "--data", "DATA", "--temperature", "-1"], "--temperature -1"),
        ([MODEL, "--data", "DATA", "--temperature", "2.1"], "--temperature 2.1: 0 to 2"),
        ([MODEL, "--data", "DATA", "--top-p", "0"], "--top-p 0"),
        ([MODEL, "--data", "DATA", "--rollout.top_p", "0.9"], "--rollout.top_p: leave it out and use --top-p"),
        ([MODEL, "--data", "DATA", "--eval.dataset", "x"], "--eval.dataset: leave it out"),
        ([MODEL, "--data", "DATA", "--rollout.temp", "0.9"], "--rollout.temperature: leave it out and use --temperature"),
        ([MODEL, "--data", "DATA", "--rpo.reward.functionz", "math"], "did you mean --rpo.reward.functions"),
        ([MODEL, "--data", "DATA", "--data.label_key", "solution"], "no column 'solution'"),
        ([MODEL, "--data", "DATA", "--reward.remote_url", "none.py"], "there is no file"),
        (["./nowhere", "--data", "DATA"], "there is no model folder ./nowhere"),
        ([MODEL, MODEL, "--data", "DATA"], "would write the same result"),
        ([MODEL, "--data", "DATA", "--lighteval", "nowhere"], "there is no lighteval 0.13.0 in nowhere. Install it"),
        ([MODEL, "--compare", "a.json"], "--compare reads results"),
    ],
)
def test_what_cannot_work_is_one_message_and_status_1(words, message, data, tmp_path, capsys):
    words = [data if word == "DATA" else word for word in words]
    assert main(["eval", *words, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_to_resume_from_is_no_model(tmp_path, data, capsys):
    folder = tmp_path / "checkpoints" / "_actor" / "global_step_4"
    folder.mkdir(parents=True)
    (folder / "mp_rank_00_model_states.pt").touch()
    for place in (tmp_path / "checkpoints", folder.parent, folder):
        assert main(["eval", str(place), "--data", data]) == 1
        error = capsys.readouterr().err
        assert "mp_rank_00_model_states.pt" in error and "--ckpt.output_dir" in error and "--ckpt.save_hf" in error


def test_a_folder_without_a_configuration_is_no_model(tmp_path, data, capsys):
    assert main(["eval", str(tmp_path), "--data", data]) == 1
    assert "it has no config.json" in capsys.readouterr().err


def test_the_prompts_are_those_of_training(data):
    """The same template, and room for the answer as the model has it."""
    subject = prepare(training_args(MODEL, data, ["--data.input_template", "Q: {} A:"]))
    assert len(subject.questions) == 8 and all(q.prompt == f"Q: {q.text} A:" for q in subject.questions)
    assert subject.args.data.max_len == 1024  # max_position_embeddings of the testbed's model


def test_parquet_is_read_as_jsonl_is(data, tmp_path):
    from datasets import load_dataset

    file = tmp_path / "held-out.parquet"
    load_dataset("json", data_files=data, split="train").to_parquet(file)
    questions = [prepare(training_args(MODEL, str(place), [])).questions for place in (data, file)]
    assert [q.question_id for q in questions[0]] == [q.question_id for q in questions[1]]


def test_a_question_that_comes_twice_is_asked_once(data, tmp_path, capsys):
    twice = tmp_path / "twice.jsonl"
    twice.write_text(Path(data).read_text() * 2)
    assert len(prepare(training_args(MODEL, str(twice), [])).questions) == 8
    assert "Warning: 8 rows repeat a question, which is asked once" in capsys.readouterr().err


def test_a_question_with_two_labels_is_a_warning(data, tmp_path, capsys):
    both = tmp_path / "both.jsonl"
    first = json.loads(Path(data).read_text().splitlines()[0])
    both.write_text("\n".join(json.dumps(first | {"answer": answer}) for answer in ("1", "2")))
    assert len(prepare(training_args(MODEL, str(both), [])).questions) == 2
    assert "Warning: the data: 1 questions are there again with another label" in capsys.readouterr().err


def test_a_shortened_option_counts_as_given(data):
    assert training_args(MODEL, data, ["--data.max_le", "100"]).data.max_len == 100
    assert training_args(MODEL, data, []).data.max_len is None


def test_the_trainer_asks_for_no_devices(data):
    from openrlhf_rpo.launch.cluster import required_devices

    args = training_args(MODEL, data, ["--vllm.num_engines", "2", "--actor.num_gpus_per_node", "2", "--train.colocate_all"])
    assert [(what, n) for what, n, _ in required_devices(args)] == [("vLLM engines", 2)]


def test_a_benchmark_without_network_says_which_file_to_provide(tmp_path):
    with pytest.raises(UsageError, match="(?s)math500.*math500.jsonl with the columns question and answer.*load_dataset"):
        rows("math500", tmp_path)


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("own", [True, False])
def test_a_benchmark_s_file_has_plain_columns_or_those_of_the_hub(name, own, tmp_path):
    benchmark = BENCHMARKS[name]
    question, answer = ("question", "answer") if own else (benchmark.question, benchmark.answer)
    solution = r"So it is \boxed{\frac{1}{2}}." if answer == "solution" else r"\frac{1}{2}"
    (tmp_path / f"{name}.jsonl").write_text(json.dumps({question: "What is 1/2?", answer: solution}))
    assert rows(name, tmp_path) == [{"question": "What is 1/2?", "answer": r"\frac{1}{2}"}]


def test_a_benchmark_s_row_without_an_answer_is_named(tmp_path):
    lines = [{"question": "a", "answer": "1"}, {"question": "b", "answer": ""}]
    (tmp_path / "amc23.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=r"amc23, row 2 of .*amc23.jsonl: no answer"):
        rows("amc23", tmp_path)


@pytest.mark.parametrize(
    ("place", "label"),
    [
        ("runs/a/model", "a-model"),
        ("deepseek-ai/R1", "deepseek-ai-R1"),
        ("data/held-out.jsonl", "held-out"),
        ("aime24", "aime24"),
    ],
)
def test_results_are_named_after_model_and_data(place, label):
    assert sample.label(place) == label


@pytest.mark.parametrize("text", [command._EPILOG, Path("docs/evaluation.md").read_text()], ids=["help", "docs"])
def test_the_results_that_are_named_are_those_of_the_command_that_is_named(text):
    models = re.search(r"eval (\S+) (\S+) --data aime24", text).groups()
    compared = re.search(r"eval --compare (\S+) (\S+)", text).groups()
    assert compared == tuple(f"runs/eval/{sample.label(str(Path(m).absolute()))}-aime24.json" for m in models)


def test_results_are_compared_question_by_question(tmp_path, capsys):
    files = [
        result(tmp_path / "base.json", {"a": [0, 0], "b": [1, 0]}),
        result(tmp_path / "tuned.json", {"b": [1, 1], "a": [1, 0]}),
    ]
    assert main(["eval", "--compare", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    [comparison] = document["comparisons"]
    assert comparison["result"] == "tuned" and comparison["against"] == "base" and comparison["mean"] == 0.5
    assert [r["figures"]["accuracy"] for r in document["results"]] == [0.25, 0.75]
    assert main(["eval", "--compare", *files]) == 0
    shown = capsys.readouterr().out
    assert "+0.500" in shown and "0.500 to 0.500" in shown


def test_results_of_one_name_are_told_apart_by_their_folders(tmp_path, capsys):
    (tmp_path / "x").mkdir()
    files = [result(tmp_path / name, {"a": [0], "b": [1]}) for name in ("a.json", "x/a.json")]
    assert main(["eval", "--compare", *files, "--json"]) == 0
    [comparison] = json.loads(capsys.readouterr().out)["comparisons"]
    assert (comparison["result"], comparison["against"]) == (f"{tmp_path}/x/a", f"{tmp_path}/a")


def test_a_result_that_shares_its_questions_with_no_other_is_named(tmp_path, capsys):
    """Several data sets of one command are shown without that."""
    others = SETTINGS | {"questions": "others"}
    files = [result(tmp_path / "a.json", {"a": [0]}), result(tmp_path / "b.json", {"c": [1]}, others)]
    assert main(["eval", "--compare", *files]) == 1
    error = capsys.readouterr().err
    assert all(f"{file} was not compared: no other result has the same questions" in error for file in files)
    assert main(["eval", "--compare", files[0]]) == 0
    show([Path(file) for file in files], Output(False), to_compare=False)


def test_prompts_of_another_template_are_said(tmp_path, capsys):
    others = SETTINGS | {"questions": "others", "template": "another"}
    files = [result(tmp_path / "a.json", {"a": [0]}), result(tmp_path / "b.json", {"c": [1]}, others)]
    assert main(["eval", "--compare", *files]) == 1
    said = f"{files[0]} and {files[1]} were not compared: their chat templates make other prompts of one file"
    assert said in capsys.readouterr().err
    show([Path(file) for file in files], Output(False), to_compare=False)
    assert said in capsys.readouterr().out.replace("\n", " ")


def test_a_result_is_named_once(tmp_path, capsys):
    file = result(tmp_path / "a.json", {"a": [0]})
    assert main(["eval", "--compare", file, file]) == 1
    assert "a result is named twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {}},
        {"settings": {}},
        {"parts": {"a": {}}},
        {"parts": {"a": {"scores": []}}},
        {"parts": []},
        {"command": None},
    ],
)
def test_a_damaged_result_is_one_message(tmp_path, capsys, change):
    file = Path(result(tmp_path / "a.json", {"a": [0]}))
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert main(["eval", "--compare", str(file)]) == 1
    assert f"error: {file} is damaged" in capsys.readouterr().err


def test_a_judges_damaged_figure_is_said_before_anything_is_shown(tmp_path, capsys):
    file = Path(result(tmp_path / "a.json", {"a": [0]}))
    document = json.loads(file.read_text())
    document["figures"]["agreement"] = "x"
    file.write_text(json.dumps(document))
    assert main(["eval", "--compare", str(file)]) == 1
    shown = capsys.readouterr()
    assert f"error: {file} is damaged" in shown.err and shown.out == ""


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sampled(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sample, "_complete", lambda *_: pytest.fail("sampled"))
    (tmp_path / "file").touch()
    assert main(["eval", MODEL, "--data", data, "--out", str(tmp_path / "file" / "out")]) == 1
    assert "cannot be made: Not a directory" in capsys.readouterr().err


def test_results_of_other_sampling_are_not_compared(tmp_path, capsys):
    files = [
        result(tmp_path / "a.json", {"a": [0]}),
        result(tmp_path / "b.json", {"a": [1]}, SETTINGS | {"temperature": 0.6}),
    ]
    assert main(["eval", "--compare", *files]) == 1
    assert "temperature is 1.0 in one and 0.6 in the other" in capsys.readouterr().err


def test_figures_are_shown_also_where_some_cannot_be_compared(tmp_path, capsys):
    files = [
        result(tmp_path / "a.json", {"a": [0]}),
        result(tmp_path / "b.json", {"a": [1]}, SETTINGS | {"max_len": 4096}),
        result(tmp_path / "c.json", {"a": [1]}),
    ]
    assert main(["eval", "--compare", *files]) == 1
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:4]] == [["a", "0.000"], ["b", "1.000"], ["c", "1.000"]]
    assert "max_len is 768 in one and 4096 in the other" in shown.err
    assert main(["eval", "--compare", *files, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert len(document["results"]) == 3 and [c["result"] for c in document["comparisons"]] == ["c"]


def test_models_that_would_have_different_room_are_refused_before_anything_is_sampled(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sample, "_complete", lambda *_: pytest.fail("sampled"))
    shorter = tmp_path / "shorter" / "model"
    shutil.copytree(MODEL, shorter)
    config = json.loads((shorter / "config.json").read_text())
    (shorter / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    words = ["eval", MODEL, str(shorter), "--data", data, "--out", str(tmp_path / "out")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "would be 512 for one and 1024 for the other" in error and "Give both the same with --data.max_len 512" in error
    with pytest.raises(pytest.fail.Exception, match="sampled"):
        main([*words, "--data.max_len", "512"])


def test_results_of_other_judges_are_not_compared(tmp_path, capsys):
    files = [
        result(tmp_path / "a.json", {"a": [0]}),
        result(tmp_path / "b.json", {"a": [1]}, SETTINGS | {"judge": "lighteval 0.13.0"}),
    ]
    assert main(["eval", "--compare", *files]) == 1
    assert "judge is None in one and lighteval 0.13.0 in the other" in capsys.readouterr().err


@pytest.fixture
def open_again(data, tmp_path):
    """Open the result of an evaluation with these training options."""
    args = Namespace(out=tmp_path, samples=1, repeats=1, temperature=1.0, top_p=1.0, max_tokens=None, lighteval=None)
    return lambda *words: sample.open_result(args, prepare(training_args(MODEL, data, words)), data)


def test_an_evaluation_does_not_go_on_under_a_reward_file_that_was_edited(open_again, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def reward_func(queries, prompts, labels): return {'rewards': 1.0}")
    open_again("--reward.remote_url", str(reward)).add("q", {})
    assert open_again("--reward.remote_url", str(reward)).parts == {"q": {}}
    reward.write_text(reward.read_text().replace("1.0", "0.0"))
    with pytest.raises(ResultError, match="setting reward_content is .*reward.py"):
        open_again("--reward.remote_url", str(reward))


def test_results_of_another_content_of_the_reward_file_are_not_compared(tmp_path, capsys):
    files = [
        result(tmp_path / f"{content}.json", {"a": [0]}, SETTINGS | {"reward_content": {"r.py": content}})
        for content in ("12ab", "34cd")
    ]
    assert main(["eval", "--compare", *files]) == 1
    assert "reward_content is {'r.py': '12ab'} in one and {'r.py': '34cd'} in the other" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "share"), [([], "0.0"), (["--rpo.reward.max_failure_share", "0.5"], "0.5")])
def test_no_reward_of_an_evaluation_may_fail_unless_the_user_allows_it(data, monkeypatch, words, share):
    """Its stand-in would be stored as the sample's score, and never be tried again."""
    made = "openrlhf_rpo.rollout.scoring.make_scorer"
    monkeypatch.setattr(made, lambda options, _: pytest.fail(f"share {options.max_failure_share}"))
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # which session sets
    subject = prepare(training_args(MODEL, data, words))
    with pytest.raises(pytest.fail.Exception, match=f"share {share}"), session(subject):
        pass


def test_what_was_finished_before_a_failed_reward_is_kept(open_again, data):
    subject = prepare(training_args(MODEL, data, []))
    evaluation = sample.Evaluation("it", open_again(), subject)
    batches = iter([[Group(q, ()) for q in subject.questions[:2]]])
    sampling = Sampling(n_samples=1, temperature=1.0, top_p=1.0, max_path_length=None)
    rollout = Namespace(sampling=sampling, sample_bare=lambda *_: next(batches))
    args = Namespace(batch=2, temperature=1.0, top_p=1.0, lighteval=None)
    with pytest.raises(StopIteration):  # in the place of RewardFailures
        sample._sample(args, Namespace(rollout=rollout), evaluation, 1)
    assert len(open_again().parts) == 2 and evaluation.missing == subject.questions[2:]


def test_an_unfinished_result_names_the_command_that_goes_on(tmp_path, capsys):
    assert main(["eval", "--compare", result(tmp_path / "a.json", {"a": [0]}, finish=False)]) == 1
    assert "is not finished; this command goes on where it stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damaged",
    [
        lambda text: text.replace('"accuracy": 0.0', '"accuracy": NaN'),
        lambda text: text.replace('"accuracy": 0.0', f'"accuracy": {"9" * 5000}'),
        lambda text: "[" * 100_000,
        lambda text: text[:-20],
    ],
    ids=["NaN", "digits", "nested", "cut short"],
)
def test_a_damaged_result_is_refused_by_name(tmp_path, capsys, damaged):
    files = [Path(result(tmp_path / f"{name}.json", {"a": [0]})) for name in "ab"]
    text = files[1].read_text()
    files[1].write_text(damaged(text))
    assert files[1].read_text() != text
    assert main(["eval", "--compare", *map(str, files)]) == 1
    assert f"{files[1]} cannot be read" in capsys.readouterr().err


def test_another_format_and_another_kind_of_result_are_refused(tmp_path, capsys):
    file = tmp_path / "a.json"
    result(file, {"a": [0]})
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    assert main(["eval", "--compare", str(file)]) == 1
    assert "has format 2, and this version reads format 1" in capsys.readouterr().err
    StudyResult.open(tmp_path / "b.json", "pathcheck", {}).finish({})
    assert main(["eval", "--compare", str(tmp_path / "b.json")]) == 1
    assert "the study pathcheck, not of an evaluation" in capsys.readouterr().err
