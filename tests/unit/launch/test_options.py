"""The command line: what it accepts, what it refuses, and what it says."""

from types import SimpleNamespace

import pytest
from deepspeed.runtime.config import DtypeEnum

from openrlhf_rpo.algo.methods import Paper
from openrlhf_rpo.algo.presets import DAPO, GRPO, RAFT
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch import options
from openrlhf_rpo.launch.options import build_parser


def value(args: SimpleNamespace, name: str):
    for part in name.split("."):
        args = getattr(args, part)
    return args


# ── Defaults and presets ──


def test_options_that_are_not_given_have_the_defaults_that_argparse_would_give():
    parser = build_parser()
    flat, given = options._parse_given([])
    defaults = vars(parser.parse_args([]))
    defaults.pop("logger.wandb.run_name", None)
    assert {k: v for k, v in vars(flat).items() if k in defaults} == defaults
    assert given == set()


def test_options_given_with_their_default_count_as_given():
    _, given = options._parse_given(["--rpo.update.epsilon", "0.1", "--train.seed=42"])
    assert given == {"rpo.update.epsilon", "train.seed"}


def test_all_linear_given_by_hand_is_what_it_is_by_default(parse):
    given = parse(ds__lora__rank=8, ds__lora__target_modules="all-linear").ds.lora.target_modules
    assert given == parse(ds__lora__rank=8).ds.lora.target_modules == "all-linear"


@pytest.mark.parametrize(("name", "expected"), Paper.sets.items())
def test_paper_sets_every_literal_choice(parse, name, expected):
    assert value(parse(rpo__method="paper"), name) == expected


@pytest.mark.parametrize(("name", "expected"), RAFT.items())
def test_raft_takes_nothing_off_a_reward(parse, name, expected):
    assert value(parse(rpo__preset="raft", algo__kl__init_coef=None), name) == expected


@pytest.mark.parametrize(("name", "expected"), GRPO.items())
def test_grpo_sets_its_estimator_clipping_and_kl(parse, name, expected):
    assert value(parse(), name) == expected


@pytest.mark.parametrize(("name", "expected"), DAPO.items())
def test_dapo_sets_its_estimator_clipping_and_sampling(parse, name, expected):
    assert value(parse(rpo__preset="dapo", algo__kl__init_coef=None), name) == expected


def test_dapo_penalizes_the_last_fifth_of_the_longest_answer(parse):
    assert parse(rpo__preset="dapo", rollout__max_new_tokens=500).reward.overlong_buffer_len == 100
    assert parse(rpo__preset="dapo", rollout__max_new_tokens=None).reward.overlong_buffer_len == 153  # 768 // 5


def test_presets_that_contradict_each_other_agree_by_hand(argv, parse):
    with pytest.raises(UsageError, match="--rpo.preset grpo and --rpo.preset dapo contradict each other"):
        parse(rpo__preset="grpo,dapo", algo__kl__init_coef=None)
    words = [*argv(rpo__preset="grpo,dapo", actor__loss_agg_mode="token-mean", algo__kl__init_coef=0)]
    assert options.parse([*words, "--actor.eps_clip_low_high", "0.2", "0.3"]).algo.dynamic_filtering_enable


@pytest.mark.parametrize(
    ("flag", "given", "expected"),
    [
        ("rpo.update.epsilon", "0.7", 0.7),
        ("rpo.init.mode", "progressive", "progressive"),  # its own default, but given by hand
        ("rpo.shaping.alpha", "0", 0.0),
        ("rpo.cut.max", "fixed:300", "fixed:300"),
        ("actor.loss_agg_mode", "token-mean", "token-mean"),
        ("algo.kl.estimator", "k2", "k2"),
    ],
)
def test_a_flag_given_by_hand_wins_over_every_preset(argv, flag, given, expected):
    words = [*argv(rpo__preset="grpo", rpo__method="paper"), f"--{flag}", given]
    assert value(options.parse(words), flag) == expected


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_one_clip_range_given_by_hand_wins_over_the_two_of_a_preset(argv, name):
    words = [*argv(rpo__preset=name), "--actor.eps_clip", "0.1"]
    assert list(options.parse(words).actor.eps_clip_low_high) == [0.1, 0.1]


def test_an_abbreviated_flag_given_by_hand_wins_too(argv):
    words = [*argv(rpo__preset="grpo", rpo__method="paper"), "--rpo.update.eps", "0.7"]
    assert options.parse(words).rpo.update.epsilon == 0.7


# ── Unknown options ──


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("--rpo.replay.shar_e", "--rpo.replay.share"),
        ("--train.batchsize", "--train.batch_size"),
        ("--rpo.update.epsylon", "--rpo.update.epsilon"),
        ("--rollout_batch_size", "--rollout.batch_size"),
    ],
)
def test_an_unknown_option_names_the_nearest_one(argv, wrong, right):
    with pytest.raises(UsageError, match=rf"unknown option {wrong}: did you mean {right}\?"):
        options.parse([*argv(), wrong, "8"])
    with pytest.raises(UsageError, match=f"did you mean {right}"):
        options.parse([*argv(), f"{wrong}=8"])


def test_an_option_like_no_other_is_only_said_to_be_unknown(argv):
    with pytest.raises(UsageError, match="^unknown option --qqqqqq$"):
        options.parse([*argv(), "--qqqqqq", "1"])


def test_help_shows_every_rpo_option():
    parser = build_parser()
    text = parser.format_help()
    ours = [a.option_strings[0] for a in parser._actions if a.dest.startswith("rpo.")]
    assert len(ours) > 30
    assert [name for name in ours if name not in text] == []


# ── What RPO cannot do ──


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train__agent_func_path": "agent.py", "rpo__reward__functions": None}, "single-turn.*agent_func_path"),
        ({"data__max_images_per_prompt": 1}, "images would be expanded twice"),
        ({"vllm__num_engines": None}, "--vllm.num_engines is missing"),
        ({"vllm__num_engines": 0}, "--vllm.num_engines is missing"),
    ],
)
def test_what_rpo_cannot_replay_is_refused_with_the_reason_and_plain_openrlhf_still_can(parse, changes, reason):
    with pytest.raises(UsageError, match=reason):
        parse(**changes)
    assert parse(**changes, rpo__enable="false").rpo.enable is False


def test_processes_of_one_engine_cannot_each_decide_on_drafts(parse):
    with pytest.raises(UsageError, match="--rpo.drafts auto with --vllm.tensor_parallel_size 2"):
        parse(rpo__drafts="auto", vllm__tensor_parallel_size=2)
    assert parse(rpo__drafts="on", vllm__tensor_parallel_size=2).rpo.drafts.mode == "on"
    assert parse(rpo__drafts="auto").rpo.drafts.mode == "auto"


def test_lora_is_refused_where_vllm_would_get_names_that_it_does_not_know(parse):
    """vLLM 0.29: "There is no module or parameter named 'base_model' in Qwen2ForCausalLM", after a whole rollout."""
    with pytest.raises(UsageError, match="--ds.lora.rank 8: .* the first weight sync would fail"):
        parse(ds__lora__rank=8, rpo__enable="false")
    assert parse(ds__lora__rank=8, rpo__enable="false", vllm__num_engines=0).ds.lora.rank == 8
    assert parse(ds__lora__rank=8).ds.lora.rank == 8


def test_an_adapter_whose_base_is_in_pieces_is_refused(parse):
    with pytest.raises(UsageError, match="--ds.zero_stage 2 or less .now 3."):
        parse(ds__lora__rank=8, ds__zero_stage=3)


def test_a_missing_model_is_named(parse):
    with pytest.raises(UsageError, match="--actor.model_name_or_path is missing"):
        parse(actor__model_name_or_path=None)


# ── Batch sizes ──


def test_what_a_step_samples_must_divide_into_training_batches(parse):
    with pytest.raises(UsageError, match="8 questions x 5 = 40, which is not a multiple of --train.batch_size 32"):
        parse(rollout__n_samples_per_prompt=5)
    parse(rollout__n_samples_per_prompt=8)


def test_plain_openrlhf_may_carry_a_rest_over_to_the_next_step(parse):
    parse(rollout__n_samples_per_prompt=5, rpo__enable="false")


# ── Weights ──


def test_weights_that_the_engines_do_not_hold_are_refused(parse):
    with pytest.raises(UsageError, match="cannot be sent to vLLM's engines"):
        parse(ds__load_in_4bit=True)
    with pytest.raises(UsageError, match="--ds.param_dtype fp16 needs RPO"):
        parse(ds__param_dtype="fp16", rpo__enable="false", rpo__reward__functions=None, reward__remote_url="r.py")
    parse(ds__param_dtype="fp16")


# ── Where rewards come from ──


def test_a_reward_model_cannot_choose_the_paths_of_a_bulk_cache(parse):
    model = {"rpo__reward__functions": None, "reward__model_name_or_path": "model", "reward__num_gpus_per_node": 1}
    with pytest.raises(UsageError, match="init.mode bulk needs scores before training"):
        parse(**model, rpo__init__mode="bulk")
    parse(**model)


@pytest.mark.parametrize("changes", [{"ds__zero_stage": 3}, {"ds__lora__rank": 8}])
def test_a_moving_average_needs_whole_weights(parse, changes):
    with pytest.raises(UsageError, match="enable_ema averages whole weights"):
        parse(train__enable_ema=True, **changes)


def test_two_reward_sources_are_refused(parse):
    for name in ("remote_url", "model_name_or_path"):
        with pytest.raises(UsageError, match=f"--rpo.reward.functions and --reward.{name} are sources of one reward"):
            parse(**{f"reward__{name}": "reward.py"})


def test_words_that_openrlhf_would_pass_on_to_fail_later_are_refused(parse):
    parse(actor__lr_scheduler="cosine", vllm__sync_backend="gloo")
    with pytest.raises(UsageError, match="vllm.sync_backend: invalid choice: 'mpi'"):
        parse(vllm__sync_backend="mpi")
    with pytest.raises(UsageError, match="actor.lr_scheduler: invalid choice: 'warmup_stable_decay'"):
        parse(actor__lr_scheduler="warmup_stable_decay")


def test_no_reward_source_is_refused(parse):
    with pytest.raises(UsageError, match="nothing gives rewards: --rpo.reward.functions"):
        parse(rpo__reward__functions=None)
    with pytest.raises(UsageError, match="nothing gives rewards"):
        parse(rpo__reward__functions=None, algo__advantage__estimator="gae")


def test_a_shipped_reward_is_no_reward_model(parse):
    args = parse()
    assert args.reward.remote_url == [options.SHIPPED_REWARD]


def test_plain_openrlhf_takes_the_shipped_math_reward_as_a_file(parse):
    [url] = parse(rpo__enable="false").reward.remote_url
    assert url.endswith("openrlhf_rpo/rewards/math_file.py")
    scope: dict = {}
    with open(url) as file:
        exec(compile(file.read(), url, "exec"), scope)
    assert scope["reward_func"]([r"1+1? \boxed{2}"], ["1+1? "], ["2"])["rewards"] == 1.0


def test_plain_openrlhf_knows_no_other_shipped_reward(parse):
    with pytest.raises(UsageError, match="takes --rpo.reward.functions math, or a Python file"):
        parse(rpo__enable="false", rpo__reward__functions="math,format")


def test_dynamic_sampling_needs_scores_at_rollout(parse):
    with pytest.raises(UsageError, match="dynamic filtering"):
        parse(
            rpo__preset="dapo",
            algo__kl__init_coef=None,
            rpo__reward__functions=None,
            reward__model_name_or_path="rm",
        )


def test_what_was_parsed_makes_a_config(parse):
    assert RPOConfig.from_namespace(parse(rpo__cut__max="fixed:9").rpo).method.cut_max == "fixed:9"


# ── Files, whose names every process must understand alike ──


def test_relative_places_are_the_commands(parse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "train.jsonl").touch()
    args = parse(
        ckpt__path="a", rpo__cache__url="sqlite:///b/c.db", logger__tensorboard_dir="d", eval__dataset="train.jsonl,hub/name"
    )
    assert (args.ckpt.path, args.logger.tensorboard_dir) == (f"{tmp_path}/a", f"{tmp_path}/d")
    assert args.ckpt.output_dir == f"{tmp_path}/ckpt"  # OpenRLHF's default is relative
    assert args.rpo.cache.url == f"sqlite:///{tmp_path}/b/c.db"
    assert (args.actor.model_name_or_path, args.data.prompt_dataset) == (f"{tmp_path}/model", f"{tmp_path}/train.jsonl")
    assert args.eval.dataset == f"{tmp_path}/train.jsonl,hub/name"  # what is not here is a name on the hub


@pytest.mark.parametrize("source", ["train.jsonl:solution", "run@40", "run"])
def test_the_place_of_an_initial_cache_is_the_commands(parse, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "train.jsonl").touch()
    assert parse(rpo__init__mode="import", rpo__init__source=source).rpo.init.source == f"{tmp_path}/{source}"


def test_absolute_places_and_servers_stay(parse):
    url = "postgresql+psycopg://user@host/database"
    assert parse(rpo__cache__url=url, ckpt__path="/a/b").rpo.cache.url == url
    assert parse(rpo__cache__url="sqlite:////a/b.db", ckpt__path="/a/b").rpo.cache.url == "sqlite:////a/b.db"


@pytest.mark.parametrize("name", ["ckpt__path", "ckpt__output_dir", "logger__tensorboard_dir"])
def test_a_bucket_is_no_folder(parse, name):
    with pytest.raises(UsageError, match=f"--{name.replace('__', '.')} s3://bucket/run: give a folder; a bucket has"):
        parse(**{name: "s3://bucket/run"})


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """The working directory of a job: Ray's copy of what was uploaded."""
    folder = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    (folder / "model").mkdir(parents=True)
    monkeypatch.chdir(folder)


WRITTEN = {"ckpt__path": "/a", "ckpt__output_dir": "/b"}


@pytest.mark.parametrize(
    "relative",
    [{"ckpt__path": "a"}, {"ckpt__output_dir": "b"}, {"rpo__cache__url": "sqlite:///c"}, {"logger__tensorboard_dir": "d"}],
)
def test_a_job_may_not_write_into_what_ray_removes_after_it(parse, submitted, relative):
    [name] = relative
    with pytest.raises(UsageError, match=f"--{name.replace('__', '.')} .* removes after it: give an absolute path"):
        parse(**WRITTEN | relative)


def test_a_job_reads_from_the_copy_that_every_node_has(parse, submitted):
    assert parse(**WRITTEN).actor.model_name_or_path == "model"


# ── Intervals, penalties, sizes ──


def test_raft_without_rpo_is_openrlhfs_own(parse):
    with pytest.raises(UsageError, match="--rpo.method off"):
        parse(rpo__preset="raft", rpo__enable="false")


@pytest.mark.parametrize("option", ["eval.steps", "ckpt.save_steps"])
def test_every_0_steps_is_refused(parse, option):
    with pytest.raises(UsageError, match=f"--{option} 0: every how many steps"):
        parse(**{option.replace(".", "__"): 0})


def test_penalties_that_openrlhf_would_refuse_after_the_first_rollout(parse):
    with pytest.raises(UsageError, match="overlong_buffer_len 5000.0 is longer than the longest answer, 64 tokens"):
        parse(reward__overlong_buffer_len=5000, rollout__max_new_tokens=64)
    with pytest.raises(UsageError, match="stop_properly_penalty_coef 2.0"):
        parse(reward__stop_properly_penalty_coef=2.0)


def test_optimizer_states_sleep_only_where_they_are_partitioned(parse):
    with pytest.raises(UsageError, match="--ds.enable_sleep needs --ds.zero_stage 1 or more"):
        parse(ds__enable_sleep=True, ds__zero_stage=0)
    parse(ds__enable_sleep=True, ds__zero_stage=1)
    with pytest.raises(UsageError, match="--ds.adam_offload needs --ds.zero_stage 1 or more"):
        parse(ds__adam_offload=True, ds__zero_stage=0)


def test_a_loss_scale_needs_a_stage_that_applies_it(parse):
    with pytest.raises(UsageError, match="--ds.param_dtype fp16 needs --ds.zero_stage 1 or more"):
        parse(ds__param_dtype="fp16", ds__zero_stage=0)


def test_an_average_of_shards_is_refused(parse):
    with pytest.raises(UsageError, match="--train.enable_ema averages whole weights.*no --ds.tensor_parallel_size"):
        parse(train__enable_ema=True, ds__tensor_parallel_size=2, actor__num_gpus_per_node=2)


def test_a_kl_that_depends_on_the_number_of_micro_batches_is_no_target(parse):
    options = {"algo__kl__target": 0.1, "algo__kl__use_loss": True, "algo__kl__init_coef": 0.01, "ref__num_gpus_per_node": 1}
    parse(**options)
    with pytest.raises(UsageError, match="--algo.kl.target follows the KL of the loss"):
        parse(train__dynamic_batch_enable=True, **options)


@pytest.mark.parametrize("name", DtypeEnum.fp32._all_values[1:])
def test_no_optimizer_that_ends_a_run_when_nothing_teaches(parse, name):
    """``assert all_groups_norm > 0`` in DeepSpeed's bf16_optimizer.py."""
    options = {"ds__grad_accum_dtype": name, "ds__param_dtype": "bf16"}
    with pytest.raises(UsageError, match=f"grad_accum_dtype {name} at --ds.zero_stage 1"):
        parse(ds__zero_stage=1, **options)
    with pytest.raises(UsageError, match=f"grad_accum_dtype {name} at --ds.zero_stage 1"):
        parse(ds__zero_stage=1, ds__grad_accum_dtype=name)  # bfloat16 on GPUs
    parse(ds__zero_stage=2, **options)
    parse(ds__zero_stage=1, ds__adam_offload=True, **options)


def test_the_engines_get_a_whole_batch(parse):
    with pytest.raises(UsageError, match="vllm_generate_batch_size 1 needs --rpo.enable false"):
        parse(rollout__vllm_generate_batch_size=1)
    parse(rollout__vllm_generate_batch_size=1, rpo__enable="false")
