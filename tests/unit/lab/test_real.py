"""Families of reasoning-gym: the worked solutions are right by its own scorers, and no question has two uses."""

import json
import os
import re
from collections import Counter

import pytest

from lab import frontier
from lab.arms import arms
from lab.command import option_words
from lab.real import PACKAGES, REWARD
from lab.real.base import SOLUTIONS, WARM_UP
from lab.real.families import FAMILIES, STRETCH, records
from lab.tasks import BASE, task
from openrlhf_rpo import upstream
from openrlhf_rpo.launch.options import parse
from openrlhf_rpo.user_code import execute

FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """make real; skipped without it, but never where CI is set."""
    if not PACKAGES.is_dir():
        message = f"there is no {PACKAGES}: make real"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


def score(answer: str, label: str) -> float:
    """What the reward file gives an answer to some prompt."""
    return execute("rewards", str(REWARD)).reward_func([f"prompt{answer}"], ["prompt"], [label])["scores"]


@FAMILY
def test_every_solution_is_right_and_an_answer_that_only_contains_the_right_one_is_not(family):
    for line in records(family, STRETCH["warm-up"], 32):
        assert score(line["solution"], line["answer"]) == 1.0
        assert score(line["solution"].replace("}", "1}"), line["answer"]) == 0.0  # reasoning-gym gives this a part of a mark
        assert score(line["solution"].replace("\\boxed", ""), line["answer"]) == 0.0


@FAMILY
def test_every_equation_of_a_solution_holds(family):
    lines = [line["solution"] for line in records(family, STRETCH["warm-up"], 32)]
    equations = re.findall(r"([-\d+* ]*\d) = ([-\d+* ]*\d)", "\n".join(lines))
    assert all(eval(left) == eval(right) for left, right in equations)  # digits and signs alone
    assert len(equations) >= 32


def test_a_product_is_taken_apart_into_tens_and_ones():
    entry = {"metadata": {"expression": "48 * 37"}, "answer": "1776"}
    assert FAMILIES["products"].solution(entry) == "48 * 30 = 1440\n48 * 7 = 336\n1440 + 336 = 1776\n\\boxed{1776}"


@FAMILY
def test_no_answer_is_frequent_so_that_giving_one_always_earns_nothing(family):
    answers = Counter(json.loads(line["answer"])["answer"] for line in records(family, STRETCH["train"], 512))
    assert max(answers.values()) / 512 < 0.05


@FAMILY
def test_questions_to_train_on_to_choose_by_and_to_report_are_different_ones(family, tmp_path):
    on = task(family.name)
    train, validation = on.write(tmp_path / "tuning", 48, 32, 0)
    again, test = on.write(tmp_path / "report", 48, 32, 32)
    parts = [[json.loads(line)["question"] for line in file.read_text().splitlines()] for file in (train, validation, test)]
    parts.append([line["question"] for line in records(family, STRETCH["warm-up"], SOLUTIONS)])
    assert len(set().union(*parts)) == sum(map(len, parts)) == 48 + 32 + 32 + SOLUTIONS
    assert train.read_text() == again.read_text()
    solved = [json.loads(line) for line in train.with_name("solutions.jsonl").read_text().splitlines()]
    assert [line["question"] for line in solved] == parts[0] and all("boxed" in line["solution"] for line in solved)


def test_training_accepts_the_options_of_a_run_with_the_chat_template_and_these_rewards(tmp_path):
    asked = frontier.asked(out=tmp_path, questions=64, evaluations=1)
    args = parse(frontier.cell(asked, "products", arms("main")["verify_raft"], seed=0).job.words)
    assert (args.actor.model_name_or_path, args.reward.remote_url) == (str(BASE), [str(REWARD)])
    assert args.data.apply_chat_template and args.rpo.reward.functions is None


def test_openrlhfs_fine_tuning_has_the_options_of_the_warm_up():
    args = upstream.nest(upstream.build_parser("train_sft").parse_args(option_words(WARM_UP)))
    assert args.data.output_key == "solution" and args.data.apply_chat_template and args.adam.lr == 2e-4
