"""The method on the command line: whose options are whose, what comes with it, and a method of one's own."""

import pytest

from openrlhf_rpo.algo.methods import METHODS, RPO
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch import options
from openrlhf_rpo.option import options_of

OWN = """
from openrlhf_rpo.algo.methods import RPO
from openrlhf_rpo.option import SHARE, option


class Half(RPO):
    half_share: float = option(0.5, "share of the path that is kept", bounds=SHARE)
    cut_max: str = option("fixed:7", "L")


class Clashing(RPO):
    cache_url: str = option("x", "taken")
"""


@pytest.fixture
def command(argv):
    """Parse a good command, with changes."""
    return lambda **changes: options.parse(argv(**changes))


def method(args):
    return RPOConfig.from_namespace(args.rpo).method


def test_rpo_is_the_default_and_naming_it_changes_nothing(command):
    assert method(command()) == RPO()
    assert vars(command(rpo__method="rpo").rpo) == vars(command().rpo)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_own_options_and_defaults_and_no_others(command, name):
    args = command(rpo__method=name)
    assert method(args) == METHODS[name]()
    for option in ("cut", "replay", "update", "budget", "verify"):
        owned = any(name.startswith(f"{option}_") for name in options_of(METHODS[name]))
        assert hasattr(args.rpo, option) == owned


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("verify", {"rpo__cut__max": "ratio:1"}, "--rpo.cut.max is an option of .* rpo and paper; the method is verify"),
        ("rpo", {"rpo__verify__lenience": 1}, "--rpo.verify.lenience is an option of .* verify; the method is rpo"),
        ("paper", {"rpo__replay__share": 0.5}, "--rpo.replay.share is an option of --rpo.method rpo and verify"),
        ("verify", {"rpo__update__on_all_wrong": "keep"}, "--rpo.update.on_all_wrong is an option of --rpo.method rpo"),
        ("off", {"rpo__replay__share": 0.5}, "the method is off: leave it out, or use that method"),
    ],
)  # fmt: skip
def test_an_option_of_another_method_is_refused_with_the_one_that_has_it(command, name, changes, message):
    with pytest.raises(UsageError, match=message):
        command(rpo__method=name, **changes)


def test_plain_openrlhf_may_have_any_of_them(command):
    assert not command(rpo__enable="false", rpo__verify__lenience=2).rpo.enable


def test_what_comes_with_a_method_gives_way_to_what_is_given_by_hand(command):
    args = command(rpo__method="paper", rpo__shaping__alpha=0.5)
    assert (args.rpo.init.mode, args.rpo.shaping.scope, args.rpo.shaping.alpha) == ("bulk", "all", 0.5)


@pytest.mark.parametrize("cause", [{"rollout__temperature": 0.7}, {"rollout__top_p": 0.9}])
def test_verified_reuse_needs_the_distribution_that_it_scores(command, cause):
    with pytest.raises(UsageError, match="--rpo.method verify .* needs --rollout.temperature 1 and --rollout.top_p 1"):
        command(rpo__method="verify", **cause)
    command(**cause)


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    return f"{tmp_path}/mine.py"


def test_a_method_of_ones_own_brings_its_options(command, own):
    args = command(rpo__method=f"{own}:Half", rpo__half__share=0.25, rpo__replay__share=0.5)
    made = method(args)
    assert (made.half_share, made.replay_share, made.cut_max) == (0.25, 0.5, "fixed:7")
    with pytest.raises(UsageError, match="--rpo.verify.lenience is an option of --rpo.method verify"):
        command(rpo__method=f"{own}:Half", rpo__verify__lenience=1)


def test_its_option_is_unknown_without_it(command):
    with pytest.raises(UsageError, match="unknown option --rpo.half.share"):
        command(rpo__half__share=0.25)


def test_its_file_is_found_from_every_working_directory(command, own, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert command(rpo__method="mine.py:Half").rpo.method == f"{own}:Half"


def test_an_option_that_there_is_already_is_refused(command, own):
    with pytest.raises(UsageError, match="its option --rpo.cache.url is already one of RPO's: name the field otherwise"):
        command(rpo__method=f"{own}:Clashing")


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "gae"])
def test_a_baseline_of_zero_is_of_an_estimator_that_takes_nothing_off(command, estimator):
    assert command(rpo__preset="raft").algo.advantage.estimator == "reinforce"
    with pytest.raises(UsageError, match="add --algo.advantage.estimator reinforce"):
        command(rpo__preset="raft", algo__advantage__estimator=estimator, critic__num_gpus_per_node=1)
