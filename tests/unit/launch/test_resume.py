"""What may change when a run is resumed, and what is refused before an engine starts."""

import json
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from openrlhf_rpo.cache import inspection
from openrlhf_rpo.cache.errors import CacheCorrupt, CacheError, CacheLocked
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.rollout.questions import load_questions
from openrlhf_rpo.run.checkpoints import CACHE_FILE, Checkpoints
from openrlhf_rpo.run.files import cache_url
from openrlhf_rpo.run.steering import steering_options
from openrlhf_rpo.types import StepRecord
from openrlhf_rpo.upstream import STAGING, get_tokenizer


@pytest.fixture
def begun(run):
    """Begin a run as the trainer does, with steps that visited nothing."""

    def begin(steps=0, **changes):
        args = run(**changes)
        questions, _ = load_questions(args, get_tokenizer(args.actor.model_name_or_path, None, use_fast=True))
        with PathCache.open(cache_url(args)) as cache:
            cache.set_options(steering_options(args, questions))
            cache.mark_initialised()
            for step in range(1, steps + 1):
                cache.commit_step(StepRecord(step, 0, 8 * step, {}), [])
        return args

    return begin


def resume(run, **changes):
    return run(ckpt__load_enable=True, **changes)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("train__seed", 7, "--train.seed was 42, now 7"),
        ("rollout__temperature", 0.7, "--rollout.temperature was 1.0, now 0.7"),
        ("rpo__cut__max", "fixed:9", '--rpo.cut.max was "ratio:0.5", now "fixed:9"'),
        ("rpo__update__epsilon", 0.2, "--rpo.update.epsilon was 0.1, now 0.2"),
        ("train__micro_batch_size", 4, "--train.micro_batch_size was 8, now 4"),
        ("actor__adam__lr", 1e-3, "--actor.adam.lr was 1e-06, now 0.001"),
        ("rpo__preset", "dapo", "--algo.dynamic_filtering_enable was false, now true"),
    ],
)
def test_an_option_that_steers_the_run_may_not_change(begun, run, option, value, said):
    begun(2)
    with pytest.raises(UsageError) as refused:
        resume(run, **{option: value})
    assert said in str(refused.value)
    assert "--rpo.allow_changed_options true" in str(refused.value)


def test_what_steered_the_run_and_is_gone_is_refused_too(begun, run, capsys):
    with PathCache.open(cache_url(begun(2))) as cache:
        cache.set_options(cache.options | {"rpo.select": '"signal"'})
    with pytest.raises(UsageError, match='--rpo.select was "signal", which no version has any more'):
        resume(run)
    resume(run, rpo__allow_changed_options="true")
    assert "--rpo.select" in capsys.readouterr().out


def test_a_checkpoint_is_loaded_into_as_many_processes_as_wrote_it(begun, run, monkeypatch):
    begun(2, actor__num_gpus_per_node=1)
    monkeypatch.setattr(Checkpoints, "latest", lambda self: "global_step2")
    with pytest.raises(UsageError, match=r"training processes was \[1\], now \[2\]: DeepSpeed.*--ds.use_universal_ckpt"):
        resume(run, actor__num_gpus_per_node=2, rpo__allow_changed_options="true")
    resume(run, actor__num_gpus_per_node=2, ds__use_universal_ckpt=True)
    monkeypatch.setattr(Checkpoints, "latest", lambda self: None)
    resume(run, actor__num_gpus_per_node=2)  # nothing to load


def test_a_run_that_goes_on_from_a_checkpoint_keeps_its_batch_size(begun, run):
    checkpointed(begun(1), 1)
    with pytest.raises(UsageError, match="--rollout.batch_size was 8, now 16: the number of steps"):
        resume(run, rollout__batch_size=16, train__batch_size=16, rpo__allow_changed_options="true")


@pytest.fixture(params=["America/New_York", "Asia/Tokyo"])
def far_from_utc(request, monkeypatch):
    with monkeypatch.context() as place:
        place.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_a_complete_run_without_checkpoints_does_not_begin_again(begun, run):
    saved = Path(begun(0).ckpt.output_dir, "tokenizer_config.json")
    saved.touch()  # of an earlier run
    args = begun(2)
    resume(run)
    os.utime(saved)
    with pytest.raises(UsageError, match="is complete, with its model in --ckpt.output_dir .*, and it kept no checkpoint"):
        resume(run)
    checkpointed(args, 2)
    resume(run)


def test_every_difference_is_named(begun, run):
    begun(1)
    with pytest.raises(UsageError, match="--rollout.top_p was 1.0, now 0.9; --train.seed was 42, now 1"):
        resume(run, rollout__top_p=0.9, train__seed=1)


def test_a_run_in_its_initial_cache_is_held_to_its_options_too(begun, run):
    begun(0)
    with pytest.raises(UsageError, match="--train.seed"):
        run(train__seed=7)


@pytest.mark.parametrize(
    "changes",
    [
        {"eval__steps": 5, "eval__temperature": 0.1},
        {"logger__tensorboard_dir": "elsewhere", "logger__logging_steps": 3},
        {"ckpt__save_steps": 3, "ckpt__max_num": 1},
        {"rollout__micro_batch_size": 4, "vllm__gpu_memory_utilization": 0.5},
        {"rpo__reward__workers": 1, "rpo__reward__timeout": 5, "rpo__dynamic__max_batches": 20},
    ],
)
def test_logging_evaluation_checkpoints_and_hardware_may_change(begun, run, changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun(1)
    resume(run, **changes)


def test_the_same_data_and_model_may_lie_elsewhere(begun, run, tmp_path):
    args = begun(1)
    moved = tmp_path / "moved.jsonl"
    moved.write_text(Path(args.data.prompt_dataset).read_text())
    resume(run, data__prompt_dataset=moved)


def test_the_same_questions_in_another_order_are_refused(begun, run, tmp_path):
    args = begun(1)
    lines = Path(args.data.prompt_dataset).read_text().splitlines()
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(reversed(lines)) + "\n")
    with pytest.raises(UsageError, match="order of the questions was"):
        resume(run, data__prompt_dataset=other)


def test_more_episodes_are_welcome_and_what_they_do_to_the_learning_rate_is_said(begun, run, capsys):
    begun(1)
    resume(run, train__num_episodes=4)
    out = capsys.readouterr().out
    assert "--train.num_episodes was 1, now 4: from here on the learning rate follows the cosine_with_min_lr" in out


def test_more_episodes_make_a_warm_up_longer(begun, run, capsys):
    begun(1, actor__lr_scheduler="constant_with_warmup")
    resume(run, actor__lr_scheduler="constant_with_warmup", train__num_episodes=4)
    assert "the learning rate follows the constant_with_warmup schedule" in capsys.readouterr().out


def test_with_a_constant_learning_rate_more_episodes_need_no_note(begun, run, capsys):
    begun(1, actor__lr_scheduler="constant")
    resume(run, actor__lr_scheduler="constant", train__num_episodes=4)
    assert "num_episodes" not in capsys.readouterr().out


def test_a_changed_run_goes_on_when_the_user_says_so(begun, run, capsys):
    begun(1)
    resume(run, train__seed=7, rpo__allow_changed_options="true")
    assert "Note: --train.seed was 42, now 7" in capsys.readouterr().out


def test_a_reward_file_is_compared_by_what_it_says(begun, run, tmp_path):
    def reward(name, constant):
        file = tmp_path / name
        file.write_text(f"def reward_func(queries, prompts, labels):\n    return [{constant}] * len(queries)\n")
        return {"rpo__reward__functions": None, "reward__remote_url": file}

    begun(1, **reward("a.py", 1.0))
    resume(run, **reward("moved.py", 1.0))
    with pytest.raises(UsageError, match="content of the reward file was"):
        resume(run, **reward("a.py", 0.5))
    server = {"rpo__reward__functions": None, "reward__remote_url": "http://127.0.0.1:1/score"}
    with pytest.raises(UsageError, match='content of the reward file was ".*", now null'):
        resume(run, **server)


def test_a_reward_server_is_not_replaced_by_a_file(begun, run, tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("def reward_func(queries, prompts, labels):\n    return [1.0] * len(queries)\n")
    begun(1, rpo__reward__functions=None, reward__remote_url="http://127.0.0.1:1/score")
    with pytest.raises(UsageError, match="content of the reward file was null, now"):
        resume(run, rpo__reward__functions=None, reward__remote_url=file)


@pytest.fixture
def method(tmp_path):
    def write(folder, share):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"from openrlhf_rpo.algo.methods import RPO\nclass Mine(RPO):\n    share = {share}\n")
        return f"{file}:Mine"

    return write


def test_a_method_of_the_users_own_is_compared_by_what_it_says(begun, run, method):
    begun(1, rpo__method=method("a", 4))
    resume(run, rpo__method=method("moved", 4))
    with pytest.raises(UsageError, match="content of the file of --rpo.method was"):
        resume(run, rpo__method=method("a", 5))


def test_shared_prefixes_may_change_unless_they_decide_what_is_trained_on_together(begun, run):
    begun(1)
    resume(run, rpo__shared_prefix="off")


def test_with_several_updates_a_rollout_shared_prefixes_may_not_change(begun, run):
    begun(1, train__batch_size=8)
    with pytest.raises(UsageError, match="shared prefixes was true, now false"):
        resume(run, train__batch_size=8, rpo__shared_prefix="off")
    with pytest.raises(UsageError, match="shared prefixes was true, now false"):
        resume(run, train__batch_size=8, ds__use_liger_kernel=True)


def test_a_cache_without_stored_options_still_opens(begun, run):
    args = begun(1)
    with PathCache.open(cache_url(args)) as cache:
        cache.set_options({})
    resume(run, train__seed=7)


def test_stored_options_are_read_back_and_replaced(begun):
    args = begun()
    with PathCache.open(cache_url(args)) as cache:
        assert json.loads(cache.options["train.seed"]) == 42
        cache.set_options({"a": "1"})
        assert cache.options == {"a": "1"}
        assert cache.fingerprints  # other rows of the run stay


def checkpointed(args, step: int) -> Path:
    """A checkpoint of that step with its copy of the cache."""
    copy = Path(args.ckpt.path, "_actor", f"global_step{step}", CACHE_FILE)
    with PathCache.open(cache_url(args)) as cache:
        cache.copy_to(str(copy))
    (copy.parent.parent / "latest").write_text(copy.parent.name)
    return copy


def test_a_cache_that_ends_before_the_checkpoint_is_refused(begun, run):
    args = begun(3)
    checkpointed(args, 3)
    with PathCache.open(cache_url(args)) as cache:
        cache.rollback(2)
    with pytest.raises(CacheError, match="ends at step 2, before the checkpoint global_step3"):
        resume(run)


def damage_step(file: Path | str, step: int) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE steps SET consumed = 7 WHERE step = ?", (step,))
    connection.close()


def test_a_damaged_row_is_found_before_the_run_goes_on(begun, run):
    args = begun(3)
    copy = checkpointed(args, 3)
    damage_step(cache_url(args).removeprefix("sqlite:///"), 2)
    with pytest.raises(CacheCorrupt, match=f"the record of step 2 is damaged.*the copy {copy} takes its place") as found:
        resume(run)
    assert str(found.value).count(str(copy)) == 1


def read_only_when_waited_for(monkeypatch) -> None:
    """From here on every cache is large, and nothing of it is read before somebody waits for that."""
    waited, inspect, wait = threading.Event(), inspection.Inspection._inspect, inspection.Inspection.wait

    def waiting(self, progress=None):
        waited.set()
        wait(self, progress)

    monkeypatch.setattr(inspection, "AT_ONCE", 0)
    monkeypatch.setattr(inspection.Inspection, "wait", waiting)
    monkeypatch.setattr(inspection.Inspection, "_inspect", lambda self: inspect(self) if waited.wait(5) else None)


def test_of_a_large_cache_every_row_is_read_before_the_run_goes_on(begun, run, monkeypatch):
    args = begun(3)
    checkpointed(args, 3)
    damage_step(cache_url(args).removeprefix("sqlite:///"), 1)
    read_only_when_waited_for(monkeypatch)
    with pytest.raises(CacheCorrupt, match="the record of step 1 is damaged"):
        resume(run)


def test_a_copy_that_is_damaged_too_is_not_compared_with(begun, run, capsys):
    args = begun(3)
    copy = checkpointed(args, 3)
    damage_step(copy, 3)
    resume(run)
    assert f"belongs to the checkpoint global_step3 is not known: Path cache {copy}" in capsys.readouterr().out
    damage_step(cache_url(args).removeprefix("sqlite:///"), 2)
    with pytest.raises(CacheCorrupt, match="the record of step 2 is damaged"):
        resume(run)


def test_the_copy_of_a_damaged_cache_in_another_folder_is_named_once(begun, run, tmp_path):
    elsewhere = {"rpo__cache__url": f"sqlite:///{tmp_path}/elsewhere/rpo_cache.db"}
    args = begun(3, **elsewhere)
    copy = checkpointed(args, 3)
    damage_step(tmp_path / "elsewhere" / "rpo_cache.db", 2)
    with pytest.raises(CacheCorrupt, match=f"That copy is {copy}: it is restored once the damaged file is removed") as found:
        resume(run, **elsewhere)
    assert str(found.value).count(str(copy)) == 1


def test_a_damaged_cache_is_refused_with_the_copy_that_takes_its_place(begun, run, capsys):
    args = begun(3)
    copy = checkpointed(args, 3)
    file = cache_url(args).removeprefix("sqlite:///")
    with open(file, "r+b") as f:
        f.truncate(9000)
    with pytest.raises(CacheCorrupt, match=f"the copy {copy} takes its place"):
        resume(run)


@pytest.mark.parametrize("again", [{"ckpt__load_enable": True}, {}])
def test_the_same_command_again_leaves_the_checkpoint_that_a_run_is_writing(begun, run, again):
    args = begun(0)
    staged = Path(args.ckpt.path, STAGING, "global_step2", "_actor", "global_step2", "weights.pt")
    staged.parent.mkdir(parents=True)
    staged.write_text("w")
    with PathCache.open(cache_url(args)), pytest.raises(CacheLocked, match="is in use by process"):
        run(**again)
    assert staged.read_text() == "w"
    run(**again)  # the run has another cache, or has ended: the trainer clears what it left
    assert staged.read_text() == "w"


def test_a_resume_without_a_checkpoint_says_that_it_starts_over(begun, run, capsys):
    begun(2)
    resume(run)
    assert "No checkpoint below --ckpt.path" in capsys.readouterr().out


def test_steps_without_the_checkpoints_that_they_had_are_not_removed(begun, run):
    begun(5)
    with pytest.raises(UsageError, match=r"holds 5 steps, and below --ckpt.path .* there is no checkpoint"):
        resume(run, ckpt__save_steps=2)
    with pytest.raises(UsageError, match=r"holds 5 steps, and below --ckpt.path .* there is no checkpoint"):
        resume(run, eval__steps=2)  # the first evaluation is the best so far
    resume(run, ckpt__save_steps=3)  # killed before its first checkpoint was complete


def test_a_cache_that_went_on_from_another_checkpoint_is_refused(begun, run):
    args = begun(2)
    copy = checkpointed(args, 2)
    with PathCache.open(cache_url(args)) as cache:
        cache.commit_step(StepRecord(3, 0, 24, {}), [])
    resume(run)
    with PathCache.open(cache_url(args)) as cache:
        cache.rollback(1)
        for step in (2, 3):
            cache.commit_step(StepRecord(step, 0, 8 * step, {"rpo/score": 0.5}), [])
    with pytest.raises(CacheError, match=f"its step 2 is not the one that the checkpoint global_step2.*copy.*{copy}"):
        resume(run)


def test_a_cache_that_was_pruned_beyond_the_checkpoint_is_refused_and_its_copy_named(begun, run):
    args = begun(3)
    copy = checkpointed(args, 2)
    with PathCache.open(cache_url(args)) as cache:
        cache.prune(3, set())
    with pytest.raises(CacheError, match=f"the paths of step 2, of the checkpoint global_step2, were pruned.*copy.*{copy}"):
        resume(run)
