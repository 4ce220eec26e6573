"""The last lines of a failed run: what ended it, what is safe, how to go on."""

import errno
from types import SimpleNamespace as Options

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from openrlhf_rpo.cache.errors import CacheUnwritable
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.launch.failures import cause_of, describe
from openrlhf_rpo.types import StepRecord


def dead(class_name: str) -> ActorDiedError:
    """As Ray builds it for a process that was killed."""
    error = ActorDiedError()
    error.args = (
        f"The actor died unexpectedly before finishing this task.\n\tclass_name: {class_name}\n\tactor_id: ab\n\tpid: 4711\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
    )
    error.error_msg = error.args[0]
    return error


def wrapped(error: Exception, function: str = "fit") -> Exception:
    """As the driver receives what a remote function raised."""
    return RayTaskError(function, f"Traceback of {function}: {error}", error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("class_name", "said"),
    [
        ("_RPOEngine", "a vLLM engine died (process 4711)"),
        ("_RPOPolicyActor", "a process of the policy (actor) died (process 4711)"),
        ("_RPOCriticActor", "a process of the critic died (process 4711)"),
        ("_RPOTrainer", "the trainer (the controller of the run) died (process 4711)"),
        ("_RPOReferenceActor", "a process of the reference model died (process 4711)"),
    ],
)
def test_a_dead_process_is_named_however_often_its_error_was_handed_on(class_name, said):
    assert cause_of(wrapped(wrapped(dead(class_name)))).startswith(said)
    assert cause_of(dead(class_name)).startswith(said)


@pytest.mark.parametrize(("line", "where"), [("\tip: 10.0.0.7\n", "10.0.0.7"), ("", "it had not started yet")])
def test_a_dead_node_is_named(line, where):
    error = dead("_RPOEngine")
    error.error_msg = (
        f"The actor died unexpectedly before finishing this task.\n\tclass_name: _RPOEngine\n\tpid: 4711\n{line}"
        "The actor died because its node has died. Node Id: 4f\n\tthe actor's node was terminated unexpectedly"
    )
    assert cause_of(wrapped(error)) == f"a vLLM engine died with its node ({where}): look at that machine"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 4792064 vs 4791952"),
        RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing: file write failed"),
    ],
)
def test_a_full_disk_is_said_whoever_found_it(error):
    assert cause_of(wrapped(wrapped(error, "save_checkpoint"))).startswith("the disk is full")


def test_an_error_of_ours_is_said_in_its_own_words():
    assert cause_of(wrapped(CacheUnwritable("Path cache x: database or disk is full. Free space."))) == (
        "Path cache x: database or disk is full. Free space."
    )


def test_any_other_error_is_said_with_its_name():
    assert cause_of(wrapped(ValueError("three is not four"))) == "ValueError: three is not four"


@pytest.fixture
def args(tmp_path):
    return Options(rpo=Options(cache=Options(url=None)), ckpt=Options(path=str(tmp_path), max_num=3, max_mem=float("inf")))


def test_what_is_safe_and_how_to_go_on_is_said(args, tmp_path):
    (tmp_path / "_actor" / "global_step2").mkdir(parents=True)
    (tmp_path / "_actor" / "latest").write_text("global_step2")
    with PathCache.open(f"sqlite:///{tmp_path}/rpo_cache.db") as cache:  # the trainer still holds it
        cache.mark_initialised()
        for step in (1, 2, 3):
            cache.commit_step(StepRecord(step, 0, step, {}), [])
        text = describe(wrapped(dead("_RPOEngine")), args)
    assert f"safe: 3 committed steps in {tmp_path}/rpo_cache.db; checkpoint: global_step2" in text
    assert "to go on: the same command with --ckpt.load_enable; what came after step 2 is run again" in text


def test_without_a_checkpoint_and_without_a_cache_it_is_said_too(args):
    text = describe(ValueError("x"), args)
    assert "the path cache could not be read just now" in text and "checkpoint: none" in text
    assert "from step 0, there is no checkpoint yet" in text
