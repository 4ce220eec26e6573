"""One place prints user errors and sets the exit status."""

import os
import signal
import time

import pytest

from openrlhf_rpo.algo.methods import MethodError
from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.errors import ExchangeError, Failed, OptionError, UpstreamError, UsageError, UserError, guarded
from openrlhf_rpo.evaluation.result import ResultError
from openrlhf_rpo.rollout.scoring import RewardFailures


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    "error",
    [UsageError, OptionError, UpstreamError, ExchangeError, CacheError, MethodError, ResultError, Failed, RewardFailures],
)
def test_an_error_of_the_users_is_one_line_and_status_1(error, capsys):
    assert issubclass(error, UserError)
    assert guarded(raising(error("the file is not there"))) == 1
    assert capsys.readouterr() == ("", "error: the file is not there\n")


def test_a_command_that_ends_well_has_its_own_status(capsys):
    assert guarded(lambda: 3) == 3
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_is_no_error_and_may_say_what_is_safe(capsys):
    assert guarded(raising(KeyboardInterrupt())) == 130
    assert guarded(raising(KeyboardInterrupt("  safe: 3 steps"))) == 130
    assert capsys.readouterr().err == "interrupted\ninterrupted\n  safe: 3 steps\n"


def test_term_ends_a_command_as_ctrl_c_does(capsys):
    def command():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert guarded(command) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "interrupted\n"


def test_a_message_cannot_steer_the_terminal(capsys):
    guarded(raising(UsageError("a path named \x1b[2J\u202e")))
    assert capsys.readouterr().err == "error: a path named \\x1b[2J\\u202e\n"


def test_a_defect_of_ours_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: 1 // 0)
