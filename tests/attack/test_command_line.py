"""Mistakes on the command line, each with words that its message must have: what is wrong, where, and what to do."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.testbed import model_dir
from tests.unit.conftest import build_argv

# Words after a command that works, and what is said. FOLDER stands for a folder with the files of ``made``.
WORDS = {
    # Names
    "--rpo.update.epsilom 0.1": "unknown option --rpo.update.epsilom: did you mean --rpo.update.epsilon?",
    "--rpo.epsilon 0.1": "did you mean --rpo.update.epsilon?",
    "--rollout_batch_size 8": "did you mean --rollout.batch_size?",
    "--\u0440po.method rpo": "did you mean --rpo.method?",  # a Cyrillic letter
    "\u2014\u2014rpo.method rpo": "unexpected argument '\u2014\u2014rpo.method': it belongs to no option",
    "stray": "unexpected argument 'stray': it belongs to no option",
    "--actor.lr 1": "ambiguous option: --actor.lr could match",
    "--rpo.cut.rule uniform": "is a former option; now: --rpo.method rpo",
    "--rpo.preset paper": "is a former option; now: --rpo.method paper",
    # Values
    "--train.batch_size many": "--train.batch_size: expected a whole number, not 'many'",
    "--train.batch_size 8.5": "--train.batch_size: expected a whole number, not '8.5'",
    "--train.batch_size": "--train.batch_size: expected one argument",
    "--actor.adam.lr fast": "--actor.adam.lr: expected a number, not 'fast'",
    "--actor.eps_clip_low_high 0.2": "--actor.eps_clip_low_high: expected 2 arguments",
    "--rpo.enable maybe": "--rpo.enable: expected true or false, not 'maybe'",
    "--rpo.update.epsilon high": "--rpo.update.epsilon: expected a number or off, not 'high'",
    "--rpo.init.mode bulkk": "--rpo.init.mode: invalid choice: 'bulkk' (choose from",
    "--algo.advantage.estimator grpo": "--algo.advantage.estimator: invalid choice: 'grpo' (choose from",
    "--rpo.cut.max ratio": "--rpo.cut.max ratio: '' is not a number; expected ratio:NUMBER or fixed:NUMBER",
    "--rpo.cut.max ratio:2": "the number of ratio must be above 0 and at most 1",
    "--rpo.budget.rule factor:0": "the number of factor must be above 0",
    "--rpo.cache.url mysql://host/x": "expected sqlite:///PATH or postgresql+psycopg://",
    "--rpo.cache.url sqlite:///": "names no file",
    # Numbers
    "--train.micro_batch_size 0": "--train.micro_batch_size 0: at least 1",
    "--rollout.micro_batch_size 0": "--rollout.micro_batch_size 0: at least 1",
    "--train.batch_size 0": "--train.batch_size 0: at least 1",
    "--rollout.batch_size -8": "--rollout.batch_size -8: at least 1",
    "--actor.adam.lr nan": "--actor.adam.lr nan: at least 0",
    "--rpo.update.epsilon inf": "--rpo.update.epsilon inf: at least 0 and at most 1",
    "--actor.adam.betas 0.9 2": "--actor.adam.betas 0.9 2.0: at least 0 and below 1",
    "--actor.eps_clip_low_high nan 0.2": "--actor.eps_clip_low_high nan 0.2: at least 0",
    "--ds.ring_attn_size 0": "--ds.ring_attn_size 0: at least 1",
    "--ds.tensor_parallel_size 0": "--ds.tensor_parallel_size 0: at least 1",
    "--train.seed -1": "--train.seed -1: at least 0 and at most",
    "--eval.steps 0": "--eval.steps 0: every how many steps, 1 or more, or -1 for never",
    "--ckpt.max_mem nan": "--ckpt.max_mem nan: above 0",
    "--reward.clip_range 5 -5": "--reward.clip_range 5 -5: the first number must be below the second",
    "--algo.dynamic_filtering_range 1 0": "--algo.dynamic_filtering_range 1 0: the first number must be below",
    "--algo.advantage.is_correction_threshold 1 2 3": "threshold 1 2 3: expected HIGH, or LOW and a larger HIGH",
    # Numbers together
    "--train.batch_size 24": "which is not a multiple of --train.batch_size 24",
    "--rollout.batch_size 7": "a step samples 7 questions x 4 = 28, which is not a multiple of --train.batch_size 32",
    "--train.micro_batch_size 5": "--train.batch_size 32 is not a multiple of --train.micro_batch_size 5",
    "--rollout.micro_batch_size 999": "--rollout.micro_batch_size 999: a step's 32 samples do not give each of 1 actor",
    "--rollout.n_samples_per_prompt 1": "--algo.advantage.estimator group_norm compares the samples of a question",
    "--rollout.batch_size 64": "--rollout.batch_size 64 asks for more questions than the data set has (16)",
    "--data.max_len 4": "prompts leave no room to answer: the longest has 7 tokens, --data.max_len is 4",
    # Options that contradict each other
    "--rpo.preset grpo,raft": "--rpo.preset grpo and --rpo.preset raft contradict each other: --algo.advantage.estimator",
    "--rpo.preset dapo,raft": "contradict each other",
    "--rpo.preset ppo": "unknown preset 'ppo'; known: grpo, raft, dapo",
    "--rpo.method off --rpo.update.epsilon 0.1": "is an option of --rpo.method rpo and paper; the method is off",
    "--rpo.verify.lenience 2": "is an option of --rpo.method verify; the method is rpo",
    "--rpo.init.mode import": "--rpo.init.mode import: --rpo.init.source is missing",
    "--rpo.init.source FOLDER/rows.txt": "it needs --rpo.init.mode import",
    "--reward.remote_url http://host": "are sources of one reward: give one",
    "--rpo.reward.weights 1,2": "--rpo.reward.weights 1,2: expected one weight for each of --rpo.reward.functions",
    "--rpo.reward.functions maths": "unknown reward 'maths'; the shipped rewards are math, format, cosine",
    "--train.async_enable --train.async_queue_size 9": "--rpo.async.max_age 4 is less than --train.async_queue_size 9",
    "--critic.freezing_steps 0": "--critic.freezing_steps 0: in these steps the critic alone would train, and there is none",
    "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip": "clip bounds a token's weight",
    "--algo.advantage.is_correction_level token --algo.advantage.is_correction_gating tv": "tv has an upper bound alone",
    "--train.async_enable --rpo.tail 0.5": "--rpo.tail 0.5 is for steps that wait for their rollout",
    "--train.async_enable --train.async_queue_size -1": "--train.async_queue_size -1: at least 0",
    "--ds.ring_attn_size 2": "num_gpus_per_node is 1, not a multiple of --ds.ring_attn_size x --ds.tensor_parallel_size, 2",
    "--vllm.num_engines 0": "--vllm.num_engines is missing: RPO generates through vLLM, at least 1 engine",
    "--use_ms": "--use_ms needs the package modelscope",
    # Templates and columns
    "--data.input_template Question": "--data.input_template 'Question': it needs {} once, where the question goes",
    "--data.input_template {}{}": "it needs {} once",
    "--data.input_template {question}": "it needs {} once",
    "--data.input_template {:>999999999}": "it needs {} once",
    "--data.input_template {}{": "write other braces as {{ and }}",
    "--data.input_template {} --data.apply_chat_template": "is not used with --data.apply_chat_template: give one",
    "--data.apply_chat_template": "--data.apply_chat_template does not fit: Cannot use chat template",
    "--data.input_key prompt": "no column 'prompt' (--data.input_key); the columns are question, answer",
    "--data.label_key lable": "no column 'lable' (--data.label_key); the columns are question, answer",
    "--data.prompt_split dev": "there is no split 'dev'",
    "--data.prompt_probs x": "--data.prompt_probs x: expected numbers between commas",
    "--data.prompt_probs 0.5,0.5": "--data.prompt_probs 0.5,0.5: expected one for each data set",
    "--data.prompt_probs -1": "each must be above 0, and together they must be 1",
    "--data.prompt_probs 1": "--data.prompt_probs mixes data sets by repeating rows",
    # Files of the user
    "--rpo.method verfy": "--rpo.method verfy: expected rpo, paper, verify, off, or FILE.py:NAME",
    "--rpo.method FOLDER/none.py:X": "there is no file",
    "--rpo.method FOLDER/empty.py:X": "has no 'X'",
    "--rpo.method FOLDER/syntax.py:X": "cannot be imported: SyntaxError",
    "--rpo.method FOLDER/raises.py:X": "cannot be imported: ValueError: boom",
    "--rpo.method FOLDER/leaves.py:X": "cannot be imported: SystemExit",
    "--rpo.method FOLDER/class.py:X": "'X' is no subclass of openrlhf_rpo.algo.methods.method.Method",
    "--ckpt.path FOLDER/rows.txt": "--ckpt.path FOLDER/rows.txt: it is a file; expected a folder",
    "--ckpt.path FOLDER/rows.txt/below": "--ckpt.path FOLDER/rows.txt/below: cannot be created",
    "--ckpt.output_dir FOLDER/rows.txt": "--ckpt.output_dir FOLDER/rows.txt: it is a file; expected a folder",
    "--actor.model_name_or_path FOLDER/none": "--actor.model_name_or_path FOLDER/none: there is no such folder",
    "--actor.model_name_or_path FOLDER/rows.txt": "it is a file; expected a model's folder, or its name on the hub",
    "--actor.model_name_or_path FOLDER": "FOLDER: no weights (.safetensors or .bin) in this folder",
    "--data.prompt_dataset FOLDER/rows.txt": "FOLDER/rows.txt: a data file's name must end in .jsonl",
}
FROM_FILES = {  # --reward.remote_url: what is said
    "FOLDER/none.py": "there is no file",
    "FOLDER/rows.txt": "neither a Python file nor a URL like http://host:port/path",
    "htp://host": "neither a Python file nor a URL like http://host:port/path",
    "FOLDER/syntax.py": "the reward cannot be loaded: SyntaxError",
    "FOLDER/raises.py": "the reward cannot be loaded: ValueError: boom",
    "FOLDER/leaves.py": "the reward cannot be loaded: SystemExit",
    "FOLDER/empty.py": "defines no function reward_func(queries, prompts, labels)",
}
PROGRAMS = {
    "empty.py": "x = 1\n",
    "syntax.py": "def x(:\n",
    "raises.py": "raise ValueError('boom')\n",
    "leaves.py": "raise SystemExit(0)\n",
    "class.py": "class X: pass\n",
}


@pytest.fixture
def made(tmp_path):
    """A folder with files that are not what the options expect."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "rows.txt").write_text("x")
    return tmp_path


@pytest.fixture
def attack(refused, testbed, made):
    """``attack(words, **changes)``: what the training command says to these words after its usual ones."""
    places = {"ckpt__path": made / "checkpoints", "ckpt__output_dir": made / "model"}

    def say(words: list[str], **changes: object) -> str:
        return refused("train", *build_argv(**testbed | places | changes), *words)

    return say


@pytest.mark.parametrize("mistake", WORDS)
def test_a_mistake_is_refused_by_name(attack, made, mistake):
    words = [word.replace("FOLDER", str(made)) for word in mistake.split()]
    assert WORDS[mistake].replace("FOLDER", str(made)) in attack(words)


@pytest.mark.parametrize("url", FROM_FILES)
def test_a_reward_that_cannot_be_is_refused(attack, made, url):
    words = ["--reward.remote_url", url.replace("FOLDER", str(made))]
    assert FROM_FILES[url] in attack(words, rpo__reward__functions=None)


EMPTY = ("rpo.method", "ckpt.path", "data.input_key", "data.prompt_dataset", "actor.model_name_or_path")


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("value", ["", "a\0b"])
def test_an_empty_value_is_refused_by_its_option(attack, name, value):
    said = attack([f"--{name}", value])
    assert f"--{name}" in said


def test_the_reward_models_folder_is_named_by_its_option(attack, made):
    changes = {"rpo__reward__functions": None, "eval__dataset": None, "reward__num_gpus_per_node": 1}
    said = attack(["--reward.model_name_or_path", f"{made}/none"], **changes)
    assert f"--reward.model_name_or_path {made}/none: there is no such folder" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval MODEL --data HELD --rpo.enable false", "--rpo.enable: leave it out; an evaluation never continues stored"),
        ("eval MODEL --data HELD --samples x", "--samples: expected a whole number of at least 1, not 'x'"),
        ("eval MODEL --data HELD --batch 0", "--batch: 0: at least 1"),
        ("eval MODEL --data HELD --temperature nan", "--temperature nan: 0 to 2"),
        ("eval --data HELD", "no model given"),
        ("data HELD --out o.jsonl --sample x", "--sample: expected a whole number, not 'x'"),
        ("data HELD --out o.txt", "the name must end in .jsonl or .parquet"),
        ("bogus", "invalid choice: 'bogus' (choose from 'train',"),
        ("data HELD --oops", "--out (see openrlhf-rpo data --help)"),
    ],
)
def test_other_commands_refuse_in_the_same_way(refused, testbed, words, message):
    places = {"MODEL": testbed["actor__model_name_or_path"], "HELD": testbed["eval__dataset"]}
    assert message in refused(*(places.get(word, word) for word in words.split()))


# ── Checkpoints ──


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x80", b"../../../etc", b"/etc", b".", b"global_step2/..", b"x" * 10**6])
def test_a_latest_file_that_names_no_checkpoint_is_refused(attack, made, content):
    folder = made / "checkpoints" / "_actor"
    (folder / "global_step2").mkdir(parents=True)
    (folder / "latest").write_bytes(content)
    assert f"{folder}/latest names " in (said := attack(["--ckpt.load_enable"]))
    assert "name one of the folders beside it (global_stepN) in that file, or remove it" in said


def test_a_latest_file_that_is_a_folder_is_refused(attack, made):
    (made / "checkpoints" / "_actor" / "latest").mkdir(parents=True)
    assert "_actor/latest is no file" in attack(["--ckpt.load_enable"])


# ── Models ──


def put(name: str, content: str | bytes):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def set_in(name: str, **values: object):
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps(content))

    return change


def without(name: str):
    return lambda folder: (folder / name).unlink()


def weights(change):
    def save(folder: Path) -> None:
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})

    return save


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def indexed(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


MODELS = {
    "no config.json": (without("config.json"), "no config.json in this folder"),
    "an empty config.json": (put("config.json", ""), "config.json is not JSON"),
    "a broken config.json": (put("config.json", "{"), "config.json is not JSON"),
    "a config.json that is no text": (put("config.json", b"\xff\xfe\x00"), "config.json is not JSON"),
    "a config.json that is a list": (put("config.json", "[]"), "config.json must hold a JSON object"),
    "a config.json that is null": (put("config.json", "null"), "config.json must hold a JSON object"),
    "a deep config.json": (put("config.json", "[" * 100_000), "config.json is not JSON (nested too deep)"),
    "a config.json of nothing": (put("config.json", "{}"), "describes no model that can be built"),
    "an unknown architecture": (set_in("config.json", model_type="foo"), "model type `foo`"),
    "another architecture": (set_in("config.json", model_type="bert"), "are not of the model in config.json"),
    "a size that is a word": (set_in("config.json", hidden_size="big"), "'hidden_size' expected int"),
    "a size of 0": (set_in("config.json", hidden_size=0), "describes no model that can be built"),
    "no heads": (set_in("config.json", num_attention_heads=0), "describes no model that can be built"),
    "another vocabulary": (set_in("config.json", vocab_size=5), "by config.json it should be"),
    "no tokenizer.json": (without("tokenizer.json"), "the tokenizer of "),
    "a broken tokenizer.json": (put("tokenizer.json", "{"), "tokenizer.json is not JSON"),
    "an empty tokenizer.json": (put("tokenizer.json", "{}"), "cannot be read: 'added_tokens'"),
    "a broken tokenizer_config.json": (put("tokenizer_config.json", "{"), "tokenizer_config.json is not JSON"),
    "a tokenizer_config.json that is a list": (put("tokenizer_config.json", "[]"), "must hold a JSON object"),
    "a broken generation_config.json": (put("generation_config.json", "{"), "generation_config.json is not JSON"),
    "no weights": (without("model.safetensors"), "no weights (.safetensors or .bin) in this folder"),
    "weights that are cut": (cut, "it was cut short, or is damaged"),
    "empty weights": (put("model.safetensors", ""), "it does not begin with a header, or is cut short"),
    "weights that are text": (put("model.safetensors", "hello world" * 9), "it does not begin with a header"),
    "a header of no end": (put("model.safetensors", b"\xff" * 99), "it does not begin with a header"),
    "a header that is no JSON": (put("model.safetensors", b"\x05" + bytes(7) + b"hello"), "its header is damaged"),
    "NaN": (weights(lambda w: {n: t * torch.nan for n, t in w.items()}), "holds NaN or infinite weights"),
    "a tensor too few": (weights(lambda w: dict(list(w.items())[1:])), "it would be drawn at random"),
    "a shard too few": (indexed, "names model-00002-of-00002.safetensors, which is not there"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_damaged_model_is_refused_by_the_file(attack, tmp_path, kind):
    change, message = MODELS[kind]
    model = Path(shutil.copytree(model_dir("main"), tmp_path / "copy"))
    change(model)
    assert message in (said := attack(["--actor.model_name_or_path", str(model)]))
    assert f"{model}" in said


def test_a_chat_template_without_the_question_is_refused(attack, tmp_path):
    model = Path(shutil.copytree(model_dir("main"), tmp_path / "copy"))
    set_in("tokenizer_config.json", chat_template="{{ 'answer' }}")(model)
    words = ["--actor.model_name_or_path", str(model), "--data.apply_chat_template"]
    assert "every prompt is the same, 'answer'" in attack(words)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(attack, tmp_path):
    model = Path(shutil.copytree(model_dir("main"), tmp_path / "copy"))
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["new"] = 10_000
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "the tokenizer is of another model" in attack(["--actor.model_name_or_path", str(model)])
