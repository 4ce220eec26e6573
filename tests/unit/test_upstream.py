"""OpenRLHF 0.11.2 as this package expects it: its options, its checks, its classes.

After the version was moved on purpose, this pins the option set anew, from the root of the repository:
``python tests/unit/test_upstream.py > tests/unit/upstream_options.txt``
"""

import argparse
import difflib
import inspect
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from openrlhf_rpo import platform, upstream

PINNED = Path(__file__).with_name("upstream_options.txt")
REGENERATE = "python tests/unit/test_upstream.py > tests/unit/upstream_options.txt"


def option_lines() -> list[str]:
    """One sorted line an option; the time in the default name of a run is masked."""
    actions = [action for action in upstream.build_parser()._actions if action.dest != "help"]
    return sorted(_line(action) for action in actions)


def _line(action: argparse.Action) -> str:
    default = re.sub(r"\d{4}T\d\d:\d\d", "<time>", repr(action.default))
    parts = [f"{' '.join(action.option_strings)} default={default}"]
    if action.type is not None:
        parts.append(f"type={action.type.__name__}")
    if action.choices is not None:
        parts.append(f"choices={','.join(map(str, action.choices))}")
    if action.nargs == 0:
        parts.append(type(action).__name__.strip("_"))
    elif action.nargs is not None:
        parts.append(f"nargs={action.nargs}")
    return " ".join(parts)


def test_the_option_set_is_the_pinned_one():
    pinned, now = PINNED.read_text().splitlines(), option_lines()
    diff = "\n".join(difflib.unified_diff(pinned, now, "pinned", "installed", lineterm="", n=0))
    assert not diff, f"OpenRLHF's options changed:\n{diff}\nIf that is meant: {REGENERATE}"


def test_the_number_of_options():
    assert len(option_lines()) == 167


# ── Its own checks ──


def finished(*words: str):
    return upstream.finish_args(upstream.build_parser().parse_args(["--reward.remote_url", "r.py", *words]))


def test_options_are_nested_and_defaults_that_depend_on_others_are_filled_in():
    args = finished("--algo.advantage.estimator", "reinforce", "--actor.eps_clip", "0.3", "--rollout.batch_size", "16")
    assert args.actor.eps_clip_low_high == (0.3, 0.3)
    assert args.rollout.vllm_generate_batch_size == 16
    assert args.reward.remote_url == ["r.py"]


def test_a_failed_check_of_upstream_is_a_usage_error_with_its_text():
    with pytest.raises(upstream.UsageError, match="group_norm requires n_samples_per_prompt > 1"):
        finished("--algo.advantage.estimator", "group_norm", "--rollout.n_samples_per_prompt", "1")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--vllm.enable_sleep", "--train.colocate_all", "--train.async_enable"], "not supported with --vllm.enable_sle"),
        (["--train.partial_rollout_enable"], "requires --train.async_enable"),
        (["--rollout.vllm_generate_batch_size", "9", "--rollout.batch_size", "8"], "requires --train.async_enable"),
        (["--algo.dynamic_filtering_enable", "--rollout.n_samples_per_prompt", "1"], "greater than 1"),
        (["--rollout.batch_size", "1", "--rollout.micro_batch_size", "8"], "number of sample batches"),
    ],
)
def test_every_check_is_run(words, text):
    with pytest.raises(upstream.UsageError, match=text):
        finished(*words)


def test_where_upstream_would_fail_on_a_missing_value_the_error_says_so():
    with pytest.raises(upstream.UsageError, match="cannot use these options together"):
        finished("--ds.packing_samples")  # vllm.num_engines is None, and None > 0


# ── Its version ──


@pytest.mark.parametrize("installed", ["0.11.1", "0.11.3", "0.12.0", "0.11.2.post1"])
def test_another_version_is_refused_with_the_command_that_installs_the_right_one(monkeypatch, installed):
    monkeypatch.setattr(upstream, "version", lambda name: installed)
    with pytest.raises(upstream.UpstreamError, match=f"{installed} is installed.*pip install openrlhf==0.11.2"):
        upstream.check_version()


def test_a_missing_openrlhf_is_refused(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(upstream, "version", missing)
    with pytest.raises(upstream.UpstreamError, match="openrlhf is not installed"):
        upstream.check_version()


def test_the_installed_version_is_the_supported_one():
    upstream.check_version()


# ── Its classes ──


def test_unwrap_gives_the_class_that_ray_wrapped():
    import ray

    class Plain:
        pass

    assert upstream.unwrap(ray.remote(Plain)) is Plain
    assert upstream.unwrap(ray.remote(num_gpus=1)(Plain)) is Plain


@pytest.mark.parametrize(("name", "method"), [("PolicyModelActor", "fit"), ("RolloutRayActor", "wake_up")])
def test_its_ray_actors_can_be_subclassed(name, method):
    actor = getattr(upstream, name)
    ours = type("Ours", (actor,), {})
    assert inspect.isclass(ours) and callable(getattr(ours, method))


@pytest.mark.parametrize("name", sorted(upstream._CLASSES))
def test_every_name_that_is_used_exists(name):
    assert callable(getattr(upstream, name))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchClass"):
        upstream.NoSuchClass  # noqa: B018


# ── The seams of its train() ──


@pytest.fixture
def seams():
    platform.prepare()
    import openrlhf.cli.train_ppo_ray as cli
    import openrlhf.trainer.ppo_trainer as trainer
    import openrlhf.trainer.ray.vllm_engine as engine

    return lambda: (
        cli.PolicyModelActor,
        cli.ReferenceModelActor,
        engine.RolloutRayActor,
        trainer.PPOTrainer,
        cli.create_vllm_engines,
    )


def test_the_classes_are_replaced_inside_and_restored_after_an_error(seams):
    before = seams()
    with (
        pytest.raises(KeyError),
        upstream.replaced("engine", "actor", "critic", "reference", "trainer"),
    ):
        assert seams()[:4] == ("actor", "reference", "engine", "trainer")
        raise KeyError
    assert seams() == before


@pytest.mark.parametrize("asked", [None, "processed_logprobs"])
def test_engines_report_the_log_probs_of_what_is_drawn_from(monkeypatch, asked):
    platform.prepare()
    import openrlhf.cli.train_ppo_ray as cli

    calls = []
    monkeypatch.setattr(cli, "create_vllm_engines", lambda *args, **kwargs: calls.append((args, kwargs)))
    with upstream.replaced("engine", "actor", "critic", "reference", "trainer"):
        cli.create_vllm_engines("a", "b", asked, agent_func_path=None)
    assert calls == [(("a", "b", "processed_logprobs"), {"agent_func_path": None})]


def test_the_mode_is_the_last_argument_that_train_passes_by_position():
    """What ``create_with_log_probs`` relies on."""
    platform.prepare()
    import openrlhf.cli.train_ppo_ray as cli

    position = list(inspect.signature(cli.create_vllm_engines).parameters).index("logprobs_mode")
    call = inspect.getsource(cli.train).split("create_vllm_engines(")[1].split("agent_func_path")[0]
    assert '"processed_logprobs" if' in call.strip().splitlines()[-1]
    assert position == len(call.strip().splitlines()) - 1


if __name__ == "__main__":
    print("\n".join(option_lines()))
