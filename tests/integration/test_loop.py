"""A whole run through Ray, DeepSpeed and vLLM, and what it leaves behind."""

import json
import math
import struct
from collections.abc import Iterator
from statistics import fmean

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer
from wandb.proto import wandb_internal_pb2

from lab.testbed import model_dir
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.rollout.questions import question_id
from openrlhf_rpo.run.catalogue import meaning

RECORDED = {
    "rpo/score",
    "rpo/generated_tokens",
    "rpo/prefix_tokens",
    "rpo/path_length",
    "rpo/truncated_rate",
    "rpo/groups_without_variance",
    "rpo/groups_all_right",
    "rpo/groups_all_wrong",
    "rpo/groups_too_old",
    "rpo/reward_failures_total",
    "rpo/cut",
    "rpo/cache_age",
    "rpo/cache/replaced",
    "rpo/tokens_generated_total",
    "rpo/tokens_reused_total",
    "rpo/rollout_log_prob_gap",
    "timing/rollout",
    "timing/reward",
    "timing/log_probs",
    "timing/train",
    "timing/weight_sync",
    "timing/cache",
    "timing/own",
}


def test_the_command_ends_well_and_says_one_line_a_step(finished_run) -> None:
    assert finished_run.status == 0, finished_run.output[-3000:]
    assert len(finished_run.step_lines) == 6


def test_every_step_is_on_disk_with_everything_that_a_step_records(finished_run) -> None:
    with finished_run.cache() as cache:
        records = cache.records()
    assert [r.step for r in records] == [1, 2, 3, 4, 5, 6]
    taken = [b.consumed - a.consumed for a, b in zip(records, records[1:], strict=False)]
    assert records[0].consumed == 4  # nothing is cached yet, so the whole batch comes from the data
    assert all(1 <= n <= 4 for n in taken) and min(taken) == 1  # later three of four replay the cache
    for record in records:
        assert record.metrics.keys() >= RECORDED
        assert all(math.isfinite(v) for v in record.metrics.values())


def test_the_first_step_samples_full_paths_and_later_ones_replay_them(finished_run) -> None:
    with finished_run.cache() as cache:
        first, *later = cache.records()
    assert first.metrics["rpo/prefix_tokens"] == 0
    assert all(r.metrics["rpo/prefix_tokens"] > 0 for r in later[1:])
    assert fmean(r.metrics["rpo/generated_tokens"] for r in later) < first.metrics["rpo/generated_tokens"]


def test_the_engine_has_the_weights_that_were_trained(finished_run) -> None:
    """In float32 both compute the same log-probs to 1e-6; one layer that is not synced, or a stale KV block, shows."""
    with finished_run.cache() as cache:
        assert max(r.metrics["rpo/rollout_log_prob_gap"] for r in cache.records()) < 2e-5


def test_training_leaves_out_the_groups_whose_rewards_do_not_differ(finished_run) -> None:
    with finished_run.cache() as cache:
        found = [(r.metrics["rpo/trained_share"], r.metrics["rpo/groups_without_variance"]) for r in cache.records()]
    assert all(trained == pytest.approx(1 - without) for trained, without in found), found
    assert min(trained for trained, _ in found) < 1


def test_a_cached_path_is_rewarded_keeps_its_parents_head_and_ends_in_the_answer(finished_run) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir("main"))
    lines = (finished_run.folder / "data" / "train.jsonl").read_text().splitlines()
    labels = {question_id(row["question"], row["answer"]): row["answer"] for row in map(json.loads, lines)}
    with finished_run.cache() as cache:
        now = cache.paths(labels)
        before = {qid: cache.paths([qid], path.step - 1).get(qid) for qid, path in now.items()}
    replayed = 0
    for qid, path in now.items():
        assert path.score == 1.0
        assert tokenizer.decode(path.token_ids, skip_special_tokens=True).rstrip().endswith(f"\\boxed{{{labels[qid]}}}")
        assert len(path.log_probs) == len(path)
        if path.parent_id is not None:
            parent = before[qid]
            assert parent.path_id == path.parent_id
            assert path.token_ids[: path.prefix_length] == parent.token_ids[: path.prefix_length]
            replayed += 1
    assert replayed > 0


def test_evaluation_is_recorded_before_during_and_after_training(finished_run) -> None:
    with finished_run.cache() as cache:
        evaluations = cache.evaluations()
    assert [step for step, _ in evaluations] == [0, 3, 6]
    assert all(0 <= m["eval_default_pass1"] <= 1 and m["eval_num_samples"] == 16 for _, m in evaluations)


def test_a_copy_of_the_cache_lies_beside_each_checkpoint(finished_run) -> None:
    folder = finished_run.folder / "checkpoints" / "_actor"
    for step in (2, 4, 6):
        with PathCache.open_to_read(f"sqlite:///{folder}/global_step{step}/rpo_cache.db") as copy:
            assert copy.latest_step == step


def test_the_best_evaluation_has_a_checkpoint_with_its_copy_of_the_cache(finished_run) -> None:
    with finished_run.cache() as cache:
        accuracy = {step: m["eval_default_pass1"] for step, m in cache.evaluations() if step}
    best = max(accuracy, key=accuracy.__getitem__)  # the first of equals
    folder = finished_run.folder / "checkpoints" / "_actor" / f"best_global_step{best}"
    with PathCache.open_to_read(f"sqlite:///{folder}/rpo_cache.db") as copy:
        assert copy.latest_step == best


def test_the_trained_model_loads_and_differs_from_the_base(finished_run) -> None:
    trained = AutoModelForCausalLM.from_pretrained(finished_run.folder / "model").state_dict()
    base = AutoModelForCausalLM.from_pretrained(model_dir("main")).state_dict()
    assert trained.keys() == base.keys()
    assert any((trained[k].float() - base[k].float()).abs().max() > 1e-4 for k in base)


@pytest.fixture
def stored(finished_run) -> dict[str, list[float]]:
    """What the database has, under the names of the trackers."""
    with finished_run.cache() as cache:
        records, evaluations = cache.records(), cache.evaluations()
    train = {f"train/{name}": [r.metrics[name] for r in records if name in r.metrics] for r in records for name in r.metrics}
    return train | {f"eval/{name}": [m[name] for _, m in evaluations] for name in evaluations[0][1]}


def test_the_same_numbers_are_in_tensorboard_under_the_same_names(finished_run, stored) -> None:
    events = EventAccumulator(str(finished_run.folder / "tensorboard" / "run"))
    events.Reload()
    logged = {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert logged.keys() == stored.keys()
    for name, values in stored.items():
        assert logged[name] == pytest.approx(values, rel=1e-5, abs=1e-7), name


def test_the_same_numbers_are_in_wandb_under_the_same_names(finished_run, stored) -> None:
    """From the file that ``wandb sync`` would send, each with the step that W&B draws it over."""
    (file,) = finished_run.folder.glob("wandb/offline-run-*/run-*.wandb")
    logged: dict[str, list[float]] = {}
    for record in wandb_records(file.read_bytes()):
        for item in record.history.item:
            logged.setdefault(item.key or "/".join(item.nested_key), []).append(json.loads(item.value_json))
    assert logged.pop("train/global_step") == [1, 2, 3, 4, 5, 6]
    assert logged.pop("eval/global_step") == [0, 3, 6]
    logged = {name: values for name, values in logged.items() if name.startswith(("train/", "eval/"))}
    assert logged.keys() == stored.keys()
    for name, values in stored.items():
        assert logged[name] == pytest.approx(values, rel=1e-5, abs=1e-7), name


def wandb_records(data: bytes) -> Iterator[wandb_internal_pb2.Record]:
    """The records of an offline run: LevelDB's log format, blocks of 32 KiB, after 7 bytes of head."""
    position, whole = 7, b""
    while position < len(data):
        if 32768 - position % 32768 < 7:  # no record begins here
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_every_recorded_name_is_documented(finished_run) -> None:
    with finished_run.cache() as cache:
        names = {name for record in cache.records() for name in record.metrics}
        names |= {name for _, metrics in cache.evaluations() for name in metrics}
    assert names >= {"reward", "kl", "actor_grad_norm", "eval_default_pass1"}
    assert {name for name in names if meaning(name) is None} == set()
