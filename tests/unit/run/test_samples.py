"""The sample log: every sample, complete files, the size limit, and what a resumed run removes."""

from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.run.samples import SCHEMA, SampleLog, read_samples, sample_files
from openrlhf_rpo.trainer import _RPOTrainer
from openrlhf_rpo.types import Group, Path, Prefix, Question, Sample

PREFIX = Prefix((5, 6), (-1.0, -1.0), 3, Path("q", (5, 6, 7, 8, 1), None, "stop", 1.0, 1.0))


def group(question_id="q", response=(7, 1)):
    samples = (
        Sample(PREFIX, response, (-1.0,) * len(response), "stop", 1.0, 0.75),
        Sample(PREFIX, (8,), (-1.0,), "length", 0.0, 0.0),
    )
    return Group(Question(question_id, "1+1?", "2"), samples)


def log(tmp_path, megabytes=1):
    return SampleLog(tmp_path / "rpo_samples", megabytes, lambda lists: [" ".join(map(str, ids)) for ids in lists])


def steps(made):
    return [step for step, _ in made.files()]


def test_every_sample_is_kept_and_datasets_loads_all_steps_together(tmp_path):
    made = log(tmp_path)
    made.write(1, [group()], [group("dropped")])
    made.write(2, [group()], [])
    pattern = str(tmp_path / "rpo_samples" / "*.parquet")
    data = load_dataset("parquet", data_files=pattern, split="train", cache_dir=str(tmp_path / "datasets"))
    assert data.column_names == SCHEMA.names and len(data) == 6
    assert data[0] == {
        "step": 1,
        "question_id": "q",
        "prompt": "1+1?",
        "label": "2",
        "sample": 0,
        "trained_on": True,
        "score": 1.0,
        "shaped_reward": 0.75,
        "cut": 3,
        "prefix_length": 2,
        "path_length": 4,
        "finish_reason": "stop",
        "prefix": "5 6",
        "response": "7 1",
        "response_ids": [7, 1],
    }
    assert [(row["question_id"], row["trained_on"]) for row in data][2] == ("dropped", False)
    assert (data[1]["finish_reason"], data[1]["sample"]) == ("length", 1)


def test_a_resumed_run_removes_what_is_newer_and_writes_it_again(tmp_path):
    made = log(tmp_path)
    for step in (1, 2, 3):
        made.write(step, [group()], [])
    made.rollback(1)
    assert steps(made) == [1]
    made.write(2, [group(response=(9,))], [])
    made.write(2, [group(response=(9,))], [])
    assert steps(made) == [1, 2]


def test_a_resumed_run_that_keeps_none_removes_the_newer_ones_too(tmp_path):
    """--rpo.log_samples may change: what is left would be shown as the samples of steps that ran again."""
    made = log(tmp_path)
    for step in (1, 2, 3):
        made.write(step, [group()], [])
    run = MagicMock(samples=None)
    run.args.ckpt.path = str(tmp_path)
    state = {"global_step": 1, "total_consumed_prompts": 4, "kl_coef": 0.0, "reward_failures": 0}
    run.client_states.return_value, run.init_checkpoint_states.return_value = {}, state
    run.cache.records.return_value, run.cache.count.return_value = [], 1
    assert _RPOTrainer.resume(run) == 1
    assert steps(made) == [1]


def test_the_oldest_go_beyond_the_bound_and_the_newest_stays(tmp_path):
    made = log(tmp_path)
    made.write(1, [group()], [])
    size = made.files()[0][1].stat().st_size
    made.max_bytes = 2 * size + size // 2
    for step in (2, 3, 4):
        made.write(step, [group()], [])
    assert steps(made) == [3, 4]
    made.max_bytes = 1
    made.write(5, [group()], [])
    assert steps(made) == [5]


def test_a_file_that_was_half_written_is_not_taken_for_one(tmp_path):
    made = log(tmp_path)
    made.write(1, [group()], [])
    (made.folder / ".step_00000002.parquet.tmp").write_text("half")
    assert steps(made) == [1]
    made.write(2, [group()], [])
    assert steps(made) == [1, 2]


def test_a_run_that_did_not_ask_keeps_none(tmp_path):
    assert SampleLog.of_run(RPOConfig(), str(tmp_path), None) is None
    made = SampleLog.of_run(RPOConfig(log_samples=3), str(tmp_path), None)
    assert made is not None and (made.folder, made.max_bytes) == (tmp_path / "rpo_samples", 3 * 2**20)


def test_the_samples_of_one_question_are_read_without_what_a_reader_has_elsewhere(tmp_path):
    made = log(tmp_path)
    made.write(1, [group(), group("other")], [])
    [(step, file)] = sample_files(made.folder)
    assert step == 1 and len(list(read_samples(file))) == 4
    rows = list(read_samples(file, "other"))
    assert {row["question_id"] for row in rows} == {"other"} and len(rows) == 2
    assert "response" in rows[0] and not {"prefix", "response_ids"} & rows[0].keys()
    assert sample_files(tmp_path / "none") == []


def replaced(table, name, values):
    return table.drop_columns(name).append_column(name, values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns("question_id"), "its question_id is nothing"),
        (
            lambda table: table.drop_columns("response").append_column("response", pa.nulls(2, pa.string())),
            "its response is",
        ),
        (lambda table: replaced(table, "score", pa.array(["1", "0"])), "its score is '1'"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, change, said):
    made = log(tmp_path)
    made.write(1, [group()], [])
    [(_, file)] = sample_files(made.folder)
    pq.write_table(change(pq.read_table(file)), file)
    with pytest.raises(ExchangeError, match=f"{file.name} cannot be read: {said}"):
        list(read_samples(file))
