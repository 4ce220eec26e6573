"""Checkpoints appear only when complete, and `latest` never names anything else."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from openrlhf_rpo.errors import Failed, UsageError
from openrlhf_rpo.run import checkpoints as module
from openrlhf_rpo.run.checkpoints import CACHE_FILE, Checkpoints, probe, step_of
from openrlhf_rpo.upstream import STAGING

INF = float("inf")
BOTH = ("_actor", "_critic")


def stage(path: Path, tag: str, metric=None, groups=("_actor",)) -> None:
    """Write what the training actors write: DeepSpeed's files, its own ``latest``, and OpenRLHF's metric."""
    for group in groups:
        folder = path / STAGING / tag / group / tag
        folder.mkdir(parents=True)
        (folder / "weights.pt").write_text(tag)
        (folder / "metric.json").write_text(json.dumps({"metric_key": "pass1", "metric_value": metric}))
        (folder.parent / "latest").write_text(tag)


def copy_cache(path: str) -> None:
    Path(path).write_text("cache")


def publish(checkpoints: Checkpoints, tag: str, metric=None, groups=("_actor",)) -> None:
    checkpoints.claim()
    stage(checkpoints.path, tag, metric, groups)
    checkpoints.publish(tag, copy_cache)


def tags(path: Path, group="_actor") -> set[str]:
    return {p.name for p in (path / group).iterdir() if p.is_dir()}


@pytest.fixture
def make(tmp_path):
    return lambda max_num=3, max_mem=INF: Checkpoints(str(tmp_path), max_num, max_mem)


def test_a_published_checkpoint_has_the_cache_beside_it_and_is_the_latest(make, tmp_path):
    publish(make(), "global_step2", groups=("_actor", "_critic"))
    assert (tmp_path / "_actor" / "global_step2" / CACHE_FILE).read_text() == "cache"
    assert (tmp_path / "_actor" / "latest").read_text() == (tmp_path / "_critic" / "latest").read_text() == "global_step2"
    assert not list((tmp_path / STAGING).glob("*"))


@pytest.mark.parametrize("groups", [(), ("_critic",)])
def test_a_checkpoint_is_staged_when_the_actor_s_part_is_or_a_model(make, tmp_path, groups):
    stage(tmp_path, "global_step1", groups=("_actor", "_critic"))
    stage(tmp_path, "global_step2", groups=groups)
    assert make().is_staged("global_step1") and not make().is_staged("global_step2")
    (tmp_path / STAGING / "global_step2" / "global_step2_hf").mkdir(parents=True)
    assert make().is_staged("global_step2")


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up."""


def operations(monkeypatch, stop_at: int) -> None:
    """End the process after the ``stop_at``-th disk operation."""
    done = 0

    def guarded(function):
        def run(*args, **kwargs):
            nonlocal done
            done += 1
            if done == stop_at:
                raise Killed
            if done > stop_at:  # what a killed process would have cleaned up is not
                return None
            return function(*args, **kwargs)

        return run

    monkeypatch.setattr(module.os, "replace", guarded(module.os.replace))
    monkeypatch.setattr(module.shutil, "rmtree", guarded(module.shutil.rmtree))
    monkeypatch.setattr(Path, "write_text", guarded(Path.write_text))


def kill_while_publishing(checkpoints: Checkpoints, tag: str, stop_at: int) -> None:
    checkpoints.claim()
    stage(checkpoints.path, tag, groups=BOTH)
    with pytest.MonkeyPatch.context() as patch:
        operations(patch, stop_at)
        with contextlib.suppress(Killed):
            checkpoints.publish(tag, copy_cache)


@pytest.mark.parametrize("stop_at", range(1, 13))
@pytest.mark.parametrize("new", ["global_step4", "best_global_step4"])
def test_wherever_publishing_is_killed_a_complete_checkpoint_is_found(make, tmp_path, stop_at, new):
    """Keeps one checkpoint, so that the old one is removed as early as possible."""
    old = new.replace("4", "2")
    publish(make(max_num=1), old, groups=BOTH)
    kill_while_publishing(make(max_num=1), new, stop_at)
    make().claim()
    tag = make(max_num=1).settle()
    assert tag in (old, new)
    for group in BOTH:
        assert (tmp_path / group / "latest").read_text() == tag
        assert (tmp_path / group / tag / "weights.pt").read_text() == tag
    assert (tmp_path / "_actor" / tag / CACHE_FILE).read_text() == "cache"
    assert not list((tmp_path / STAGING).glob("*"))


@pytest.mark.parametrize("stop_at", range(1, 10))
@pytest.mark.parametrize("new", ["global_step4", "best_global_step4"])
def test_wherever_publishing_the_first_is_killed_a_complete_one_is_found_or_none(make, tmp_path, stop_at, new):
    """An actor's checkpoint without the critic's would be refused."""
    kill_while_publishing(make(), new, stop_at)
    tag = make().settle(critic=True)
    assert tag in (None, new) and (stop_at < 9 or tag == new)
    for group in BOTH if tag else ():
        assert (tmp_path / group / "latest").read_text() == tag
        assert (tmp_path / group / tag / "weights.pt").read_text() == tag


def test_a_run_publishes_nothing_once_another_has_begun_in_its_folder(make, tmp_path):
    """It may have another cache, and then no lock tells one of the other."""
    former, later = make(), make()
    publish(former, "global_step2")
    stage(tmp_path, "global_step4")
    later.claim()
    assert not list((tmp_path / STAGING).glob("*"))
    with pytest.raises(Failed, match=f"another run has begun in --ckpt.path {tmp_path}, and this one ends"):
        former.publish("global_step4", copy_cache)
    publish(later, "global_step3")
    assert later.latest() == "global_step3"


def test_what_is_in_the_staging_folder_is_never_chosen(make, tmp_path):
    stage(tmp_path, "global_step2")
    assert make().settle() is None


@pytest.mark.parametrize("named", ["", "global_step9"])
def test_the_newest_folder_is_chosen_when_latest_is_empty_or_names_what_is_gone(make, tmp_path, named):
    for step in (2, 10, 4):
        publish(make(), f"global_step{step}")
    (tmp_path / "_actor" / "latest").write_text(named)
    assert make().settle() == "global_step10"
    assert (tmp_path / "_actor" / "latest").read_text() == "global_step10"


def test_of_two_at_one_step_the_regular_one_is_chosen(make, tmp_path):
    """At many steps, because the order in which two equal ones are found is arbitrary."""
    for step in range(1, 17):
        for tag in (f"global_step{step}", f"best_global_step{step}"):
            publish(make(max_num=99), tag)
        (tmp_path / "_actor" / "latest").unlink()
        assert make().latest() == f"global_step{step}"


def test_latest_is_obeyed_when_it_names_an_older_checkpoint(make, tmp_path):
    for step in (2, 4):
        publish(make(), f"global_step{step}")
    (tmp_path / "_actor" / "latest").write_text("global_step2\n")
    assert make().settle() == "global_step2"


def test_latest_goes_when_no_checkpoint_is_left(make, tmp_path):
    publish(make(), "global_step2")
    shutil.rmtree(tmp_path / "_actor" / "global_step2")
    assert make().settle() is None
    assert not (tmp_path / "_actor" / "latest").exists()


def test_a_critic_without_the_actors_checkpoint_is_refused(make, tmp_path):
    publish(make(), "global_step2", groups=("_actor", "_critic"))
    shutil.rmtree(tmp_path / "_critic" / "global_step2")
    with pytest.raises(UsageError, match=r"global_step2 .* not in .*_critic"):
        make().settle()
    shutil.rmtree(tmp_path / "_critic")
    with pytest.raises(UsageError, match=r"global_step2 .* not in .*_critic"):
        make().settle(critic=True)
    assert make().settle() == "global_step2"


def test_a_checkpoint_of_the_same_step_is_replaced_as_a_whole(make, tmp_path):
    publish(make(), "global_step2")
    (tmp_path / "_actor" / "global_step2" / "of_another_world_size.pt").write_text("stale")
    publish(make(), "global_step2")
    assert not (tmp_path / "_actor" / "global_step2" / "of_another_world_size.pt").exists()


# ── Rotation ──


def test_the_oldest_go_first_and_their_copies_with_them(make, tmp_path):
    for step in (2, 4, 6, 8, 10):
        publish(make(max_num=3), f"global_step{step}", groups=("_actor", "_critic"))
    assert tags(tmp_path) == tags(tmp_path, "_critic") == {"global_step6", "global_step8", "global_step10"}


def test_those_without_a_metric_go_before_those_with_the_worst_but_never_the_newest(make, tmp_path):
    for step, metric in ((2, 0.9), (4, None), (6, 0.2), (8, 0.1)):
        publish(make(max_num=2), f"global_step{step}", metric)
    assert tags(tmp_path) == {"global_step2", "global_step8"}


def test_the_best_one_is_not_counted_and_goes_when_a_better_one_is_there(make, tmp_path):
    publish(make(max_num=1), "best_global_step1", 0.1)
    publish(make(max_num=1), "global_step2")
    assert tags(tmp_path) == {"best_global_step1", "global_step2"}
    publish(make(max_num=1), "best_global_step3", 0.2)
    assert tags(tmp_path) == {"best_global_step3", "global_step2"}


def test_the_size_limit_keeps_the_newest(make, tmp_path):
    publish(make(), "global_step2")
    publish(make(max_mem=1e-12), "global_step4")
    assert tags(tmp_path) == {"global_step4"}


@pytest.mark.parametrize(("spare", "kept"), [(-1, {"global_step4"}), (0, {"global_step2", "global_step4"})])
def test_the_size_limit_holds_to_the_byte_for_actor_and_critic_together(make, tmp_path, spare, kept):
    for step in (2, 4):
        publish(make(), f"global_step{step}", groups=("_actor", "_critic"))
    actor, critic = (
        sum(file.stat().st_size for file in (tmp_path / group).rglob("*") if file.is_file())
        for group in ("_actor", "_critic")
    )
    assert critic > 1  # the actor alone is below both limits
    make(max_mem=(actor + critic + spare) / 1024**3).prune("global_step4")
    assert tags(tmp_path) == tags(tmp_path, "_critic") == kept


@pytest.mark.parametrize(("tag", "step"), [("global_step12", 12), ("best_global_step3", 3), ("other", -1)])
def test_the_step_of_a_tag(tag, step):
    assert step_of(tag) == step


def test_a_model_in_its_own_format_is_published_too(make, tmp_path):
    checkpoints = make()
    checkpoints.claim()
    stage(tmp_path, "global_step2")
    (tmp_path / STAGING / "global_step2" / "global_step2_hf").mkdir(parents=True)
    checkpoints.publish("global_step2", copy_cache)
    assert (tmp_path / "global_step2_hf").is_dir()


def test_the_steps_are_those_of_any_checkpoint_the_best_one_included(make, tmp_path):
    assert make().steps() == {0}
    for name in ("global_step20", "best_global_step10", "global_step100", "global_step5.tmp"):
        (tmp_path / "_actor" / name).mkdir(parents=True)
    assert make().steps() == {10, 20, 100}


def test_a_probe_is_below_the_folder_while_somebody_looks_and_leaves_nothing(tmp_path):
    with probe(str(tmp_path)) as file:
        assert [str(path) for path in tmp_path.iterdir()] == [file]
    assert list(tmp_path.iterdir()) == []


# ── Damage ──

DAMAGED = [
    "",
    "{",
    "[" * 100_000,
    "5",
    "{}",
    '{"metric_value": "0.9"}',
    '{"metric_value": NaN}',
    '{"metric_value": [1]}',
    "\xff",
]


@pytest.mark.parametrize("text", [*DAMAGED, '{"metric_value": 1' + "0" * 400 + "}"], ids=lambda text: text[:20])
def test_a_damaged_metric_counts_as_none_and_is_said(make, tmp_path, capsys, text):
    for step, metric in ((2, 0.9), (4, 0.1), (6, 0.2)):
        publish(make(max_num=3), f"global_step{step}", metric)
    (tmp_path / "_actor" / "global_step2" / "metric.json").write_text(text, encoding="latin-1")
    publish(make(max_num=3), "global_step8", 0.3)
    assert tags(tmp_path) == {"global_step4", "global_step6", "global_step8"}
    assert "metric.json is damaged" in capsys.readouterr().out


def test_a_critics_checkpoint_without_the_actors_goes_with_the_next_pruning(make, tmp_path):
    for step in (2, 4):
        publish(make(max_num=3), f"global_step{step}", groups=("_actor", "_critic"))
    shutil.rmtree(tmp_path / "_actor" / "global_step2")  # as a process killed in between leaves it
    publish(make(max_num=3), "global_step6", groups=("_actor", "_critic"))
    assert tags(tmp_path, "_critic") == tags(tmp_path) == {"global_step4", "global_step6"}


@pytest.mark.parametrize("named", ["../../../etc", "global_step", "global_step" + "9" * 5000, "\x1b[2J", "best"], ids=repr)
def test_a_latest_that_names_no_checkpoint_is_refused(make, tmp_path, named):
    publish(make(), "global_step2")
    (tmp_path / "_actor" / "latest").write_text(named)
    with pytest.raises(UsageError, match="which is no checkpoint"):
        make().settle()


def test_a_latest_that_is_no_text_is_refused(make, tmp_path):
    publish(make(), "global_step2")
    (tmp_path / "_actor" / "latest").write_bytes(bytes(range(128, 256)) * 100)
    with pytest.raises(UsageError, match="which is no checkpoint"):
        make().latest()
