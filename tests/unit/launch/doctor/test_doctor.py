"""What the doctor finds in a command, each trap on the testbed's real model and data."""

import json
import re
import sqlite3
from pathlib import Path

import pytest

from lab.testbed import write_dataset
from openrlhf_rpo import platform
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.cli.train_rpo_ray import main as train
from openrlhf_rpo.launch.doctor import machine, training
from openrlhf_rpo.launch.doctor.findings import FAIL, PASS, WARN
from openrlhf_rpo.launch.doctor.memory import GIB, ModelShape
from openrlhf_rpo.launch.options import build_parser
from openrlhf_rpo.launch.preflight import load_tokenizer
from openrlhf_rpo.run.files import cache_copy_path, cache_url
from openrlhf_rpo.types import Question, StepRecord


def found(document: dict, topic: str, level: str) -> str:
    """The messages and remedies of a topic at a level."""
    findings = [f for f in document["findings"] if (f["topic"], f["level"]) == (topic, level)]
    return "\n".join(f"{f['message']} {f['remedy']}" for f in findings)


def test_what_openrlhf_recommends_is_no_part_of_the_document(argv, usual, capsys):
    main(["doctor", "--json", *argv(**usual | {"train__dynamic_batch_enable": True})])
    said = capsys.readouterr()
    assert json.loads(said.out)["findings"] and "[Warning]" in said.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ds__use_liger_kernel": True}, "--ds.use_liger_kernel needs the package liger-kernel"),
        (
            {"ds__ring_attn_size": 2, "ds__packing_samples": True, "actor__num_gpus_per_node": 2},
            "above 1 needs the package ring-flash-attn",
        ),
    ],
)
def test_a_package_that_an_option_needs_is_missed_before_anything_starts(doctor, argv, usual, capsys, changes, said):
    assert said in found(doctor(**changes), "options", FAIL)
    assert train(argv(**usual | changes)) == 1
    assert said in capsys.readouterr().err


def test_what_checks_drafts_is_said_and_that_no_gpu_has_run_them(doctor):
    assert not found(doctor(), "drafts", PASS)
    assert "up to 6 tokens" in (said := found(doctor(rpo__drafts="auto", rpo__drafts__tokens=6), "drafts", PASS))
    assert "issue 55005" in said
    assert training.drafts(4, "cuda").level == WARN


def test_seconds_of_a_step_are_said_for_gpus(doctor, monkeypatch):
    monkeypatch.setenv(platform.DEVICE_ENV, "cpu")  # set back behind the test
    assert not found(doctor(), "seconds of a step", PASS)
    changes = {"rpo__device": "cuda", "rpo__method": "verify", "vllm__num_engines": 2, "actor__num_gpus_per_node": 4}
    said = found(doctor(**changes), "seconds of a step", PASS)
    assert "on 6 H100" in said and "with every answer from its first token: " in said
    ours, plain = (int(n) for n in re.findall(r"([0-9]+) new tokens a sample", said.replace(",", "")))
    assert ours < plain
    drafted = found(doctor(**changes, rpo__drafts="auto"), "seconds of a step", PASS)

    def rollout(said):
        return float(re.findall(r"this command: .*rollout ([0-9.]+)", said)[0])

    assert rollout(drafted) < rollout(said)


def test_a_good_command_passes_and_nothing_is_written(doctor, usual):
    document = doctor()
    assert document["status"] == PASS
    assert "openrlhf 0.11.2" in found(document, "version", PASS)
    assert "2 CPUs: actor 1; vLLM engines 1" in found(document, "Ray asks", PASS)
    assert "598,144 parameters" in found(document, "model", PASS)
    assert "16 questions" in found(document, "data", PASS)
    assert "scores of right answers" in found(document, "reward", PASS)
    assert "the run starts at step 0" in found(document, "cache", PASS)
    assert not Path(usual["ckpt__path"]).exists() and not Path(usual["ckpt__output_dir"]).exists()


def test_the_training_command_with_dry_run_says_the_same_and_stops(argv, usual, capsys):
    assert train([*argv(**usual), "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "pass  data: 16 questions" in said.out and "0 failed" in said.err


def test_a_machine_is_examined_without_a_command(capsys):
    assert main(["doctor", "--json"]) == 0
    topics = {f["topic"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert topics == {"version", "device"}


def test_a_wrong_option_is_the_only_finding(doctor):
    document = doctor(train__batch_size=33)
    assert [f["level"] for f in document["findings"]] == [FAIL]
    assert "--train.batch_size 33 is not a multiple" in found(document, "options", FAIL)


@pytest.mark.parametrize("sleeps", [False, True])
def test_an_engine_that_shares_the_policys_device_must_sleep_or_leave_it_room(parse, monkeypatch, sleeps):
    changes = {"train__colocate_all": True, "vllm__num_engines": 1, "vllm__gpu_memory_utilization": 0.95}
    args = parse(**changes | ({"vllm__enable_sleep": True} if sleeps else {}))
    monkeypatch.setattr(training, "device_memory", lambda: 80 * GIB)
    shape = ModelShape(1_500_000_000, 28, 1536, 2, 128, 151_936)
    policy, _ = training.memory_needed(shape, args, "cuda", {})
    assert policy.level == (PASS if sleeps else WARN)
    assert ("keeps 76.0 GiB of it" in policy.message) == ("--vllm.enable_sleep" in policy.remedy) == (not sleeps)


def test_an_engine_that_wakes_must_find_room_beside_what_stays(parse, monkeypatch):
    """80 GiB: 2.8 of weights, 5.6 of gradients and an average's 5.6, 33.5 of optimizer; and an engine's 40."""
    asked = {"train__colocate_all": True, "vllm__num_engines": 1, "vllm__gpu_memory_utilization": 0.5}
    asked |= {"vllm__enable_sleep": True, "train__enable_ema": True}
    monkeypatch.setattr(training, "device_memory", lambda: 80 * GIB)
    shape = ModelShape(3_000_000_000, 28, 1536, 2, 128, 151_936)
    _, engine = training.memory_needed(shape, parse(**asked), "cuda", {})
    assert engine.level == WARN and "an engine that is awake takes 40.0 GiB" in engine.message
    lower = re.match(r"add --ds.enable_sleep, lower --vllm.gpu_memory_utilization \(to (0\.\d\d)\)", engine.remedy)[1]
    _, engine = training.memory_needed(shape, parse(**asked | {"vllm__gpu_memory_utilization": lower}), "cuda", {})
    assert engine.level == PASS
    _, engine = training.memory_needed(shape, parse(**asked, ds__enable_sleep=True), "cuda", {})
    assert engine.level == PASS


def test_an_option_that_deepspeed_ignores_is_said(doctor):
    document = doctor(ref__offload=True)
    assert "--ref.offload does nothing below --ds.zero_stage 3" in found(document, "options", WARN)


@pytest.mark.parametrize("option", ["ckpt__path", "ckpt__output_dir", "logger__tensorboard_dir"])
def test_a_folder_that_cannot_be_made_fails_and_none_is_made(doctor, tmp_path, option):
    (tmp_path / "file").write_text("")
    document = doctor(**{option: tmp_path / "file" / "runs"})
    assert f"{tmp_path}/file/runs: cannot be created: {tmp_path}/file is a file" in found(document, "disk", FAIL)
    assert not (tmp_path / "model").exists()


def test_data_that_cannot_be_used_fail_and_what_does_not_need_them_is_still_said(doctor):
    document = doctor(data__input_key="problem")
    assert "no column 'problem'" in found(document, "data", FAIL)
    assert found(document, "memory to train", PASS)


def test_a_length_that_leaves_no_room_for_a_path_is_warned_about(doctor):
    document = doctor(data__max_len=9)
    assert "for its path: a truncated path is seldom rewarded. Raise --data.max_len" in found(document, "data", WARN)


def test_a_package_of_another_version_is_named_with_the_command_that_installs_it(monkeypatch):
    there = {"ray": "2.40.0", "openrlhf": "0.10.0", "torch": None}
    installed = machine._installed
    monkeypatch.setattr(machine, "_installed", lambda name: there[name] if name in there else installed(name))
    findings = {f.message.split()[0]: f for f in machine.versions("cpu")}
    assert (findings["ray"].level, findings["ray"].remedy) == (WARN, "pip install 'ray==2.55.0'")
    assert findings["openrlhf"].level == findings["torch"].level == FAIL
    assert "torch is not installed" in findings["torch"].message
    assert "flash-attn" not in findings and findings["vllm"].level == PASS


def test_a_gpu_host_is_told_what_runs_without_flash_attention(monkeypatch):
    monkeypatch.setattr(machine, "_installed", lambda name: None)
    [missing] = [f for f in machine.versions("cuda") if f.message.startswith("flash-attn")]
    assert (missing.level, missing.remedy) == (WARN, "pip install 'flash-attn==2.8.3' --no-build-isolation")


def test_every_option_that_a_remedy_names_exists():
    known = {name for action in build_parser()._actions for name in action.option_strings}
    sources = "".join(file.read_text() for file in Path(training.__file__).parent.glob("*.py"))
    assert set(re.findall(r"--[a-z]+\.[a-z_.]*[a-z_]", sources)) - known == set()


# ── Prompt ──


@pytest.fixture
def prompt_findings(parse, usual):
    """What is said of a prompt by a level, with the testbed's tokenizer changed first."""
    from openrlhf_rpo.launch.doctor.training import template

    def examine(prompt, level, change=lambda tokenizer: None, **options):
        args = parse(**usual | options)
        tokenizer = load_tokenizer(args)
        change(tokenizer)
        question = Question("a1", prompt, "2")
        return "\n".join(f.message for f in template(args, tokenizer, question) if f.level == level)

    return examine


def test_the_prompt_is_shown_as_the_model_gets_it(prompt_findings):
    assert "4 tokens, label '2':\n1+1?" in prompt_findings("1+1?", PASS)
    assert prompt_findings("1+1?", WARN) == ""


def test_a_prompt_that_ends_with_the_end_is_found(prompt_findings):
    assert "it ends with '<eos>'" in prompt_findings("1+1?<eos>", WARN)


def test_a_doubled_beginning_is_found(prompt_findings):
    def begin_with_eos(tokenizer):
        tokenizer.bos_token = "<eos>"

    assert "it begins with '<eos>' twice" in prompt_findings("<eos><eos>1+1?", WARN, begin_with_eos)


def test_a_template_that_is_not_applied_or_opens_no_answer_is_found(prompt_findings):
    def closed(tokenizer):
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"

    def opened(tokenizer):
        closed(tokenizer)
        tokenizer.chat_template += "{% if add_generation_prompt %}={% endif %}"

    assert "it is not applied" in prompt_findings("1+1?", WARN, closed)
    assert "begins inside the user's turn" in prompt_findings("1+1?", WARN, closed, data__apply_chat_template=True)
    assert prompt_findings("1+1?", WARN, opened, data__apply_chat_template=True) == ""


# ── Reward ──


@pytest.fixture
def reward_file(tmp_path):
    def write(body):
        file = tmp_path / "reward.py"
        file.write_text(f"def reward_func(queries, prompts, labels):\n    {body}\n")
        return {"rpo__reward__functions": None, "reward__remote_url": file}

    return write


def test_a_reward_that_fails_is_named_with_its_cause(doctor, reward_file):
    said = found(doctor(**reward_file("raise ValueError('no such answer')")), "reward", FAIL)
    assert "of 3 rewards failed" in said and "no such answer" in said


def test_a_reward_that_right_answers_do_not_get_is_warned_about(doctor, reward_file):
    document = doctor(**reward_file("return {'rewards': 0.0, 'scores': 0.0, 'extra_logs': {}}"))
    assert "check --data.label_key" in found(document, "reward", WARN)


# ── Sharing and cache ──


def test_micro_batches_that_split_groups_are_said(doctor):
    document = doctor(train__micro_batch_size=2, rollout__micro_batch_size=2)
    assert "--train.micro_batch_size 4, or a multiple" in found(document, "shared prefix", WARN)
    assert "every sample runs whole" in found(doctor(rpo__shared_prefix="off"), "shared prefix", WARN)


def test_one_answer_a_question_shares_what_questions_begin_with(doctor):
    one = {"rollout__n_samples_per_prompt": 1, "train__batch_size": 8, "algo__advantage__estimator": "reinforce"}
    assert "what they all begin with" in found(doctor(**one), "shared prefix", PASS)


def test_a_cache_that_holds_steps_fails_unless_the_run_resumes(doctor, parse, usual, commit_steps):
    args = parse(**usual)
    commit_steps(args, 1)
    assert "already holds 1 steps" in found(doctor(), "cache", FAIL)
    assert "1 steps; the run starts at step 0" in found(doctor(ckpt__load_enable=True), "cache", PASS)
    other = write_dataset("main", Path(args.ckpt.path).parent / "other", 12, 4, seed=1)[0]
    assert "a run with another data" in found(doctor(data__prompt_dataset=other), "cache", FAIL)


def test_checkpoints_whose_cache_is_lost_or_another_one_fail_unless_the_run_resumes(doctor, parse, usual, commit_steps):
    """As in the run itself, whose first checkpoint would replace them."""
    args = parse(**usual)
    commit_steps(args, 1)
    copy = Path(cache_copy_path(args, "global_step1"))
    copy.parent.mkdir(parents=True)
    with PathCache.open(cache_url(args)) as cache:
        cache.copy_to(str(copy))
    assert "the run resumes from checkpoint global_step1" in found(doctor(ckpt__load_enable=True), "cache", PASS)
    with PathCache.open(cache_url(args)) as cache:
        cache.rollback(0)
        cache.commit_step(StepRecord(1, 0, 4, {"reward": 0.5}), [])
    said = found(doctor(ckpt__load_enable=True), "cache", FAIL)
    assert "its step 1 is not the one that the checkpoint global_step1 was written after" in said
    Path(cache_url(args).removeprefix("sqlite:///")).unlink()
    assert "holds the checkpoints of a run, up to global_step1" in found(doctor(), "cache", FAIL)
    assert "the copy beside checkpoint global_step1 will be restored" in found(doctor(ckpt__load_enable=True), "cache", PASS)


def test_a_cache_of_a_command_that_sampled_nothing_is_open_to_this_one(doctor, parse, usual):
    url = cache_url(parse(**usual))
    with PathCache.open(url, {"data": "other"}) as cache:
        cache.set_options({"actor.adam.lr": "0.5"})
    assert "0 paths, 0 steps; the run starts at step 0" in found(doctor(), "cache", PASS)
    with PathCache.open(url) as cache:
        cache.commit_initial([], 100)
    assert "a run with another data" in found(doctor(), "cache", FAIL)


def test_a_cache_of_an_older_schema_is_no_failure(doctor, parse, usual, commit_steps):
    args = parse(**usual)
    commit_steps(args, 1)
    with sqlite3.connect(cache_url(args).removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    importing = {"rpo__init__mode": "import", "rpo__init__source": "/none.jsonl:worked"}
    document = doctor(ckpt__load_enable=True, **importing)
    assert document["status"] == PASS
    said = found(document, "cache", WARN)
    assert "Resuming its run upgrades it" in said and "Only then can it be checked whether it belongs to this run" in said
    assert "--ckpt.load_enable to resume that run" in found(doctor(), "cache", WARN)


def test_the_source_of_an_initial_cache_is_looked_at(doctor, usual, tmp_path):
    rows = [json.loads(line) | {"worked": "1"} for line in Path(usual["data__prompt_dataset"]).read_text().splitlines()]
    (tmp_path / "worked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    importing = {"rpo__init__mode": "import", "rpo__init__source": f"{tmp_path}/worked.jsonl:worked"}
    assert "16 of 16 paths are of this run's questions" in found(doctor(**importing), "initial cache", PASS)
    importing["rpo__init__source"] = f"{tmp_path}/none.jsonl:worked"
    assert "--rpo.init.source there is no file" in found(doctor(**importing), "initial cache", FAIL)
    assert not Path(usual["ckpt__path"]).exists()


def test_a_run_that_resumes_from_a_checkpoint_needs_no_source_any_more(doctor, usual):
    checkpoint = Path(usual["ckpt__path"]) / "_actor" / "global_step1"
    checkpoint.mkdir(parents=True)
    importing = {"rpo__init__mode": "import", "rpo__init__source": "/none.jsonl:worked"}
    (checkpoint.parent / "latest").write_text(checkpoint.name)
    document = doctor(**importing, ckpt__load_enable=True)
    assert "complete: the source is not read again" in found(document, "initial cache", PASS)
    assert "there is no file" in found(doctor(**importing), "initial cache", FAIL)


def test_an_address_where_no_cluster_is_fails_with_the_address(doctor, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for device, topic in (("auto", "options"), ("cpu", "Ray has")):
        said = found(doctor(rpo__device=device), topic, FAIL)
        assert "no Ray cluster answers at RAY_ADDRESS 127.0.0.1:1" in said


def test_more_processes_than_the_host_has_memory_for_are_a_warning(doctor):
    said = found(doctor(vllm__num_engines=500), "Ray has", WARN)
    assert "501 model processes" in said and "Ray kills processes when memory runs out" in said


def test_plain_openrlhf_is_examined_too(doctor):
    document = doctor(rpo__enable="false")
    assert document["status"] == PASS and not found(document, "shared prefix", PASS)
