"""What is found before an engine starts, and how it is said."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig, AutoTokenizer

from lab.testbed import model_dir
from openrlhf_rpo.cache.errors import CacheMismatch
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.preflight import _check_heads, _check_vocabulary
from openrlhf_rpo.rollout.questions import load_eval_questions, load_questions
from openrlhf_rpo.run.files import cache_copy_path, cache_url, fingerprints
from openrlhf_rpo.upstream import get_tokenizer


@pytest.fixture
def rows(tmp_path):
    """Write records to a file and give its path."""

    def write(records, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def questions(n, **fields):
    return [{"question": f"{i}+1?", "answer": str(i + 1)} | fields for i in range(n)]


def test_a_path_longer_than_the_models_context_is_refused(run):
    run(data__max_len=1024)
    with pytest.raises(UsageError, match="--data.max_len 1025 is more than the 1,024 tokens of the model's context"):
        run(data__max_len=1025)


def test_a_good_run_passes_and_its_questions_are_counted(run, capsys):
    run()
    assert "16 questions\n" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "warned"), [(-1, True), (2, False)])
def test_held_out_questions_that_are_never_asked_are_warned_of(run, capsys, steps, warned):
    run(eval__steps=steps)
    assert ("--eval.dataset is never evaluated without --eval.steps N" in capsys.readouterr().out) is warned


@pytest.mark.parametrize(("temperature", "n", "warned"), [(0, 4, True), (0, 1, False), (0.6, 4, False)])
def test_answers_that_a_greedy_evaluation_repeats_are_warned_of(run, capsys, temperature, n, warned):
    run(eval__steps=2, eval__temperature=temperature, eval__n_samples_per_prompt=n)
    assert (f"--eval.temperature 0 is greedy, so all {n} answers" in capsys.readouterr().out) is warned


def test_the_figure_that_chooses_the_best_must_be_one(run):
    run(eval__steps=2, ckpt__best_metric_key="eval_default_pass1")
    with pytest.raises(
        UsageError, match="best_metric_key nonsense: an evaluation has no such figure; there is eval_default_pass1"
    ):
        run(eval__steps=2, ckpt__best_metric_key="nonsense")


def test_an_option_that_keeps_every_sample_whole_is_said(run, capsys):
    run(actor__aux_loss_coef=0.01)
    assert "Shared prefix: off, every sample runs whole: --actor.aux_loss_coef" in capsys.readouterr().out


# ── The model ──


def test_a_model_without_its_tokenizer_is_refused(run, model):
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").unlink()
    with pytest.raises(UsageError, match="the tokenizer of .*/copy is not complete"):
        run(actor__model_name_or_path=model)


def test_the_checks_and_the_trainer_agree_on_the_tokenizer(run, model):
    """Upstream gives a tokenizer without a padding token one, which changes its fingerprint."""
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    args = run(actor__model_name_or_path=model)
    tokenizer = get_tokenizer(args.actor.model_name_or_path, None, "left", None, use_fast=True)
    loaded, _ = load_questions(args, tokenizer)
    with PathCache.open(cache_url(args)) as cache:
        cache.mark_initialised()  # from here on the cache is the checks' run alone
    PathCache.open(cache_url(args), fingerprints(args, loaded, tokenizer)).close()


# ── The data ──


def test_a_missing_data_set_is_refused(run, tmp_path):
    with pytest.raises(UsageError, match="--data.prompt_dataset .*none.jsonl: there is no such file"):
        run(data__prompt_dataset=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="--eval.dataset .*none.jsonl: there is no such file"):
        run(eval__dataset=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="--data.prompt_dataset is missing"):
        run(data__prompt_dataset=None)


def test_duplicates_are_merged_and_said(run, rows, capsys):
    run(data__prompt_dataset=rows(questions(10) + questions(3)))
    assert "10 questions (3 duplicates merged)" in capsys.readouterr().out


def test_the_same_question_with_another_label_is_another_question(run, rows, capsys):
    run(data__prompt_dataset=rows(questions(8) + questions(8, answer="99")))
    out = capsys.readouterr().out
    assert "16 questions\n" in out
    assert (
        "Warning: --data.prompt_dataset: 8 questions are there again with another label, such as '0+1?': '1' and '99'" in out
    )


def test_a_label_that_more_than_a_third_of_the_questions_have_is_warned_about(run, rows, capsys):
    """A policy that always gives it has that accuracy without reading a question."""
    same = [{"question": f"{i}-{i - 1}?", "answer": "1"} for i in range(20, 33)]
    other = [{"question": f"{i}+1?", "answer": str(i + 1)} for i in range(50, 77)]
    run(data__prompt_dataset=rows(same + other[:26]))
    assert "have the label" not in capsys.readouterr().out
    run(data__prompt_dataset=rows(same + [{"question": "2-1?", "answer": "1"}] + other, "more.jsonl"))
    said = capsys.readouterr().out
    assert "Warning: --data.prompt_dataset: 14 of 41 questions have the label '1': a policy can learn to answer" in said


@pytest.mark.parametrize("episodes", [1, 5])
def test_fewer_questions_than_a_batch_are_refused(run, rows, episodes):
    """However many episodes: a batch has no question twice."""
    with pytest.raises(UsageError, match=r"--rollout.batch_size 8 asks for more .*\(7\).*no step would run"):
        run(data__prompt_dataset=rows(questions(7)), train__num_episodes=episodes)
    run(data__prompt_dataset=rows(questions(8), "enough.jsonl"), train__num_episodes=episodes)


def test_prompts_that_leave_no_room_for_an_answer_are_refused(run, rows):
    """The testbed's tokenizer has a token a character; "0+1?" has 4."""
    data = rows(questions(9) + [{"question": "1+1+1+1+1?", "answer": "5"}])
    run(data__prompt_dataset=data, data__max_len=11)
    with pytest.raises(UsageError, match="1 of 10 prompts leave no room .* the longest has 10 tokens, --data.max_len is 10"):
        run(data__prompt_dataset=data, data__max_len=10, eval__dataset=None)
    with pytest.raises(UsageError, match="--eval.dataset: 1 of 10 prompts leave no room"):
        run(data__prompt_dataset=rows(questions(9), "short.jsonl"), eval__dataset=data, data__max_len=10)


def test_little_room_for_a_path_is_warned_about_unless_no_path_needs_it(run, rows, capsys):
    """The longest prompt has 10 tokens: 2 of 12 are less than a quarter."""
    data = rows([*questions(9), {"question": "100000+10?", "answer": "100010"}])
    run(data__prompt_dataset=data, eval__dataset=None, data__max_len=12)
    said = capsys.readouterr().out
    assert "Warning: the longest prompt has 10 tokens and leaves 2 of --data.max_len 12 for its path" in said
    run(data__prompt_dataset=data, eval__dataset=None, data__max_len=12, rollout__max_new_tokens=2)
    run(data__prompt_dataset=data, eval__dataset=None, data__max_len=14)
    assert "leaves" not in capsys.readouterr().out


def test_an_empty_prompt_is_refused(run, rows):
    with pytest.raises(UsageError, match="1 of 9 rows have no question to ask, the first is row 9: a blank text"):
        run(data__prompt_dataset=rows(questions(8) + [{"question": "", "answer": "1"}]))


def test_a_repeated_evaluation_question_is_asked_once_of_each_data_source(run, rows, capsys):
    """With the same seeds its answers would be the same."""
    repeated = rows(questions(2, datasource="aime") * 3 + questions(1, datasource="amc"))
    args = run(eval__dataset=repeated)
    loaded, dropped = load_eval_questions(args, get_tokenizer(args.actor.model_name_or_path, None))
    assert [question.datasource for question in loaded] == ["aime", "aime", "amc"] and dropped == 4
    assert "--eval.dataset: 4 rows repeat a question, which is asked once" in capsys.readouterr().out


@pytest.mark.parametrize(("first", "name"), [("aime", "aime"), (1.5, "1.5")])
def test_rows_that_name_no_data_source_are_evaluated_as_default(run, rows, first, name):
    args = run(eval__dataset=rows([row | {"datasource": s} for row, s in zip(questions(2), (first, None), strict=True)]))
    loaded, _ = load_eval_questions(args, get_tokenizer(args.actor.model_name_or_path, None))
    assert [question.datasource for question in loaded] == [name, "default"]


@pytest.mark.parametrize("source", [["aime", "amc"], {"name": "aime"}])
def test_a_data_source_that_is_no_name_is_refused(run, rows, source):
    with pytest.raises(UsageError, match="--eval.dataset .*: the column datasource must hold names; row 1 has"):
        run(eval__dataset=rows(questions(2, datasource=source)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "no checkpoint will be written; a run that is killed begins again at step 0"),
        ({"rpo__async__max_age": 9}, "--rpo.async.max_age does nothing without --train.async_enable"),
        ({"rpo__dynamic__max_batches": 3}, "--rpo.dynamic.max_batches does nothing without --algo.dynamic"),
        ({"rpo__drafts__tokens": 8}, "--rpo.drafts.tokens does nothing without --rpo.drafts on or auto"),
        (
            {"rpo__reward__cosine_max_len": 9},
            "--rpo.reward.cosine_max_len does nothing without --rpo.reward",
        ),
        (
            {"rpo__method": "off", "rpo__init__mode": "bulk"},
            "--rpo.init.mode bulk does nothing without a method",
        ),
        (
            {"rpo__shaping__alpha": 0.1, "rpo__reward__functions": "math,format"},
            "a wrong one in the right format",
        ),
        (
            {"rpo__reward__functions": "cosine", "rpo__reward__cosine_max_len": 99},
            "answers of more than --rpo.reward.cosine_max_len 99 tokens all get one reward; they may have 768",
        ),
        ({"rollout__max_new_tokens": 9999}, "--rollout.max_new_tokens 9999 has no effect: --data.max_len"),
        ({"train__micro_batch_size": 2}, "a micro-batch of 2 samples splits groups of 4"),
    ],
)
def test_an_option_that_does_not_do_what_it_seems_to_is_warned_about(run, capsys, changes, said):
    run(eval__dataset=None, **changes)
    assert said in capsys.readouterr().out
    run(ckpt__save_steps=1)
    assert said not in capsys.readouterr().out


# ── Labels ──


def test_some_labels_that_math_cannot_parse_are_warned_about_and_named(run, rows, capsys):
    run(data__prompt_dataset=rows(questions(16) + [{"question": "7+7?", "answer": "??"}]), eval__dataset=None)
    out = capsys.readouterr().out
    assert "Warning: 1 of 17 labels cannot be parsed" in out and "'??' ('7+7?')" in out


def test_many_labels_that_math_cannot_parse_are_refused(run, rows):
    data = rows(questions(8) + [{"question": "7+7?", "answer": "??"}])  # 1 of 9 is above a tenth
    with pytest.raises(UsageError, match="1 of 9 labels cannot be parsed .* Check --data.label_key"):
        run(data__prompt_dataset=data, eval__dataset=None)


def test_labels_are_not_looked_at_when_no_reward_parses_them(run, rows):
    data = rows(questions(8, answer="??"))
    run(data__prompt_dataset=data, eval__dataset=None, rpo__reward__functions="format")


# ── The cache ──


def save_copy(args, step: int) -> None:
    """As a checkpoint of that step leaves it."""
    copy = Path(cache_copy_path(args, f"global_step{step}"))
    copy.parent.mkdir(parents=True)
    (copy.parent.parent / "latest").write_text(f"global_step{step}")
    tokenizer = get_tokenizer(args.actor.model_name_or_path, None)
    loaded, _ = load_questions(args, tokenizer)
    with PathCache.open(cache_url(args), fingerprints(args, loaded, tokenizer)) as cache:
        cache.copy_to(str(copy))


def remove_cache(args) -> Path:
    file = Path(cache_url(args).removeprefix("sqlite:///"))
    for path in file.parent.glob(file.name + "*"):
        path.unlink()
    return file


def test_the_same_command_may_be_checked_again_before_it_has_run(run):
    run()
    run()


def test_a_cache_of_another_data_set_is_refused(run, commit_steps, rows):
    commit_steps(run(), 0)
    with pytest.raises(CacheMismatch, match="data fingerprint differs"):
        run(data__prompt_dataset=rows(questions(8)))


def test_a_cache_of_another_tokenizer_is_refused(run, commit_steps, model):
    commit_steps(run(), 0)
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(text.replace('"z"', '"Z"', 1))
    with pytest.raises(CacheMismatch, match="tokenizer fingerprint differs"):
        run(actor__model_name_or_path=model)


def test_a_cache_that_holds_steps_needs_the_flag_that_resumes(run, commit_steps):
    args = run()
    commit_steps(args, 2)
    with pytest.raises(UsageError, match="already holds 2 steps of a run: add --ckpt.load_enable"):
        run()
    run(ckpt__load_enable=True)


def test_a_lost_cache_comes_back_from_the_checkpoint_when_the_run_resumes(run, commit_steps, capsys):
    args = run()
    commit_steps(args, 3)
    save_copy(args, 3)
    file = remove_cache(args)
    run(ckpt__load_enable=True)
    assert "restoring the copy beside the checkpoint" in capsys.readouterr().out
    with PathCache.open(f"sqlite:///{file}") as cache:
        assert cache.latest_step == 3


def test_checkpoints_whose_cache_is_lost_are_not_replaced_by_those_of_a_new_run(run, commit_steps):
    """Without --ckpt.load_enable its first checkpoint would remove the earlier ones."""
    args = run()
    commit_steps(args, 1)
    save_copy(args, 1)
    file = remove_cache(args)
    with pytest.raises(UsageError, match="holds the checkpoints of a run, up to global_step1, .*--ckpt.load_enable"):
        run()
    assert not os.path.exists(file) and os.path.exists(cache_copy_path(args, "global_step1"))


# ── The command ──


def test_a_bad_command_ends_with_status_1_and_one_message_before_ray_or_an_engine_exists(argv, rows, tmp_path):
    program = (
        "import sys; from openrlhf_rpo.cli.train_rpo_ray import main; status = main(sys.argv[1:]); "
        "ray = sys.modules.get('ray'); started = ray is not None and ray.is_initialized(); "
        "print('ray started:', started, 'vllm:', 'vllm' in sys.modules); sys.exit(status)"
    )
    rows(questions(16))
    given = {"data__prompt_dataset": "rows.jsonl", "ckpt__path": "c", "rpo__device": "cpu", "logger__wandb__key": "on"}
    words = argv(actor__model_name_or_path=model_dir("main"), **given)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env = kept | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[3]), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, *words]
    result = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1].startswith("error: --logger.wandb.key turns W&B on, and there is no login")
    assert "Traceback" not in result.stderr
    assert "ray started: False vllm: False" in result.stdout
    assert not (tmp_path / "c").exists()


def test_a_wrong_option_is_said_without_loading_torch(argv):
    program = (
        "import sys; from openrlhf_rpo.cli.train_rpo_ray import main; print(main(sys.argv[1:])); "
        "print([name for name in ('torch', 'ray', 'vllm', 'transformers') if name in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    words = argv(rpo__update__epsilon=7)
    result = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env=env)
    assert result.stdout.split() == ["1", "[]"]
    assert result.stderr == "error: --rpo.update.epsilon 7.0: at least 0 and at most 1\n"


def test_an_added_token_counts_where_a_prompt_or_answer_can_hold_it():
    """Gemma 3's 1B has a token for images, and no row for it."""
    tokenizer, config = AutoTokenizer.from_pretrained(model_dir("main")), AutoConfig.from_pretrained(model_dir("main"))
    tokenizer.add_tokens(["<image>"])
    _check_vocabulary("m", tokenizer, config)
    tokenizer.chat_template = "{{ '<image>' }}"
    with pytest.raises(UsageError, match="the tokenizer is of another model"):
        _check_vocabulary("m", tokenizer, config)


@pytest.mark.parametrize(("parts", "divide"), [(1, True), (4, True), (3, False)])
def test_an_engines_gpus_share_the_models_heads(parts, divide):
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_attention_heads=28))
    args = SimpleNamespace(vllm=SimpleNamespace(tensor_parallel_size=parts), actor=SimpleNamespace(model_name_or_path="m"))
    with nullcontext() if divide else pytest.raises(UsageError, match="size 3 must divide the 28 heads of the model"):
        _check_heads(args, config)
