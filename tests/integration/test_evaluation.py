"""Evaluation and a study on a real engine, on the testbed; one engine for most of the file."""

import json
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.studies import continuations
from lab.studies.cuts import parse_cut
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.evaluation import judge, sample
from openrlhf_rpo.evaluation.session import Session, prepare, session, training_args
from openrlhf_rpo.rollout.rollout import EVAL_STEP
from openrlhf_rpo.types import Prefix, Rejected

MODEL = str(model_dir("main"))
COMMAND = Path(sys.executable).with_name("openrlhf-rpo")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_dataset("main", tmp_path_factory.mktemp("data"), 1, 6, seed=0)[1]


@pytest.fixture(scope="module")
def opened(data) -> Iterator[Session]:
    with session(prepare(training_args(MODEL, str(data), ["--train.seed", "0"]))) as opened:
        yield opened


def sampled(opened, n, questions=slice(None)):
    sampling = replace(opened.rollout.sampling, n_samples=n, temperature=1.0)
    return opened.rollout.sample_bare(opened.questions[questions], sampling, EVAL_STEP)


def test_a_sample_depends_on_question_and_number_alone(opened):
    """So an evaluation goes on where it stopped with the samples that it would have had, and more samples keep the first."""
    whole, few = sampled(opened, 4), sampled(opened, 2, slice(2, 4))
    ids = {g.question.question_id: [s.response_ids for s in g.samples] for g in whole}
    assert all([s.response_ids for s in g.samples] == ids[g.question.question_id][:2] for g in few)


def test_scores_are_those_of_the_math_reward_and_nothing_is_a_prefix(opened):
    from openrlhf_rpo.rewards.math import math_reward

    for group in sampled(opened, 2):
        for answer in group.samples:
            text = opened.tokenizer.decode(answer.response_ids, skip_special_tokens=True)
            assert answer.score == math_reward(text, group.question.label) and len(answer.prefix) == 0


def test_continuations_begin_with_what_was_kept_and_are_counted_by_cut(opened):
    args = Namespace(model=None, samples=3, temperature=1.0, top_p=1.0)
    cuts = [parse_cut("2"), parse_cut("50%"), parse_cut("100%")]
    questions = opened.questions[:3]
    paths = continuations.sample_paths(args, opened.rollout, questions)
    parts = continuations.continue_paths(args, opened.rollout, questions, paths, cuts, lambda: None)
    for question_id, part in parts.items():
        length = part["length"]
        assert length == len(paths[question_id].token_ids)
        assert part["by_cut"]["100%"]["cut"] == length and part["by_cut"]["50%"]["cut"] == (length + 1) // 2
        assert part["by_cut"]["2"]["tokens"] < part["by_cut"]["50%"]["tokens"] < part["by_cut"]["100%"]["tokens"]
        # Only the end of the box was cut: the answer stays what it was.
        assert part["by_cut"]["2"]["right"] == 3 * part["score"]


def test_a_rejected_token_counts_its_weight_in_the_draw_of_the_next_and_log_probs_stay_the_policys(opened):
    """Where the policy is least sure of its greedy answer: 300 samples of one more token and the next, for each weight."""
    [question] = opened.questions[:1]
    greedy = replace(opened.rollout.sampling, n_samples=1, temperature=0.0)
    [[path]] = [g.samples for g in opened.rollout.sample_bare([question], greedy, EVAL_STEP)]
    kept = min(range(len(path.response_ids)), key=lambda t: path.response_log_probs[t])
    token, log_prob = path.response_ids[kept], path.response_log_probs[kept]
    usual = replace(opened.rollout.sampling, n_samples=300, temperature=1.0, max_path_length=kept + 2)

    def draw(rejected):
        head, log_probs = path.response_ids[:kept], path.response_log_probs[:kept]
        start = Prefix(head, log_probs, len(path.response_ids) - kept, rejected=rejected)
        return opened.rollout.sample_from([question], [(start,) * 300], usual, EVAL_STEP)[0].samples

    plain = draw(None)
    known = {s.response_ids[0]: s.response_log_probs[0] for s in plain}
    assert known[token] == pytest.approx(log_prob, abs=0.02)
    p = math.exp(known[token])
    assert 0.2 < p < 0.8, "the testbed's policy is nowhere unsure"
    for weight in (0.0, 0.25):
        samples = draw(Rejected(token, log_prob, weight))
        expected = weight * p / (1 - p + weight * p)
        again = sum(s.response_ids[0] == token for s in samples)
        assert abs(again / 300 - expected) <= 4 * math.sqrt(expected * (1 - expected) / 300)
        shared = [s for s in samples if s.response_ids[0] in known]
        assert len(shared) > 250
        for s in shared:
            assert s.response_log_probs[0] == pytest.approx(known[s.response_ids[0]], abs=0.02)
        assert {len(s.response_ids) for s in samples} == {2} and {s.truncated for s in samples} == {True}


def test_an_evaluation_goes_on_where_it_stopped(opened, data, tmp_path):
    """The real command: what is there already is kept, the rest are the samples of training's own evaluation."""
    options = ["--train.seed", "0"]
    begun = Namespace(out=tmp_path, samples=2, repeats=1, temperature=1.0, top_p=1.0, max_tokens=None, lighteval=None)
    begun_file = sample.open_result(begun, prepare(training_args(MODEL, str(data), options)), str(data))
    first, *others = sampled(opened, 2)
    kept = {"label": "", "scores": [7.0, 7.0], "tokens": [1, 1], "truncated": [False, False]}
    begun_file.add(first.question.question_id, kept)
    more = tmp_path / "more.jsonl"
    more.write_text("".join(data.read_text().splitlines(keepends=True)[1:3]))

    command = [COMMAND, "eval", MODEL, "--data", data, more, "--out", tmp_path, "--samples", "2", "--temperature", "1"]
    command += ["--json", *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Starting 1 vLLM engine") == 1  # for both data sets
    found, found_more = (json.loads(Path(result["file"]).read_text()) for result in json.loads(done.stdout)["results"])
    assert found["parts"].pop(first.question.question_id) == kept
    by_question = {g.question.question_id: [s.score for s in g.samples] for g in others}
    assert {q: part["scores"] for q, part in found["parts"].items()} == by_question
    assert found["figures"]["questions"] == 6 and found["figures"]["samples"] == 2
    assert found_more["parts"] == {g.question.question_id: found["parts"][g.question.question_id] for g in others[:2]}

    again = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert "Starting" not in again.stderr  # finished results start no engine


@pytest.fixture(scope="module")
def lighteval() -> Path:
    """Where lighteval's packages are."""
    if not judge.FOLDER.is_dir():
        pytest.skip(f"there is no {judge.FOLDER}: make lighteval")
    return judge.FOLDER


@pytest.mark.release
def test_lighteval_judges_expressions_and_not_the_wording(lighteval):
    rows = [
        judge.Answered("Half of 712?", "356", ["so it is \\boxed{356}", "\\boxed{\\frac{712}{2}}", "\\boxed{0357}", ""]),
        judge.Answered(
            "A third?",
            "\\frac{1}{3}",
            ["The answer is $\\frac{2}{6}$", "\\boxed{9^{9^{9}}}", "<script>", "\u2028 \\boxed{1/3}"],
        ),
    ]
    assert judge.judge(lighteval, rows) == [[1, 1, 0, 0], [1, 0, 0, 1]]


@pytest.mark.release
def test_the_judging_process_runs_no_code_from_the_current_folder_or_from_answers(lighteval, tmp_path, monkeypatch):
    made = f"open({str(tmp_path / 'trace')!r}, 'w')"
    for module in ("json", "numpy", "datasets", "lighteval", "sympy", "train", "questions", "openrlhf_rpo"):
        (tmp_path / f"{module}.py").write_text(made)
    monkeypatch.chdir(tmp_path)
    answers = [f"\\boxed{{{made}}}", f"${made}$", f"\\boxed{{\\text{{{made}}}}}"]
    assert judge.judge(lighteval, [judge.Answered("1+1?", "2", [*answers, "\\boxed{2}"])]) == [[0, 0, 0, 1]]
    assert not (tmp_path / "trace").exists()


@pytest.mark.release
def test_an_evaluation_that_lighteval_judges(lighteval, opened, data, tmp_path):
    """Its scores stand where the reward's stood, which stay beside them; on the testbed the two agree on every answer.

    What had been sampled and not judged when the command ended is judged when it goes on."""
    args = Namespace(
        out=tmp_path, samples=4, repeats=1, temperature=1.0, top_p=1.0, max_tokens=None, batch=4, lighteval=lighteval
    )
    args.pass_k = None
    subject = prepare(training_args(MODEL, str(data), ["--train.seed", "0"]))
    evaluation = sample.Evaluation("test", sample.open_result(args, subject, str(data)), subject)
    sample._sample(args, opened, evaluation, 4)
    reward = {name: part["scores"] for name, part in evaluation.result.parts.items()}

    again = sample.Evaluation("test", sample.open_result(args, subject, str(data)), subject)
    sample._complete(args, [again])  # everything is sampled: no engine starts
    found = json.loads(again.result.file.read_text())
    assert {name: part["rewards"] for name, part in found["parts"].items()} == reward
    assert {name: part["scores"] for name, part in found["parts"].items()} == reward
    assert 0 < found["figures"]["accuracy"] < 1 and found["figures"]["agreement"] == 1
    assert found["settings"]["judge"] == "lighteval 0.13.0" and "texts" not in json.dumps(found)
