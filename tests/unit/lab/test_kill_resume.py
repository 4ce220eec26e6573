"""What a resumed run is held against."""

import sys

import pytest

from lab.kill_resume import BY_INVARIANTS, CONFIGURATIONS, command, compare, how_compared
from openrlhf_rpo.launch.options import parse


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_configuration_is_one_that_training_accepts(tmp_path, configuration):
    words = command(configuration, tmp_path, resume=False)
    assert words[0] == sys.executable
    parse(words[3:])


def test_only_what_depends_on_the_clock_is_held_against_invariants(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.kill_resume.differences", lambda *folders: [f"{len(folders)} folders differ"])
    monkeypatch.setattr("lab.kill_resume.violations", lambda folder: [f"{folder.name} breaks one"])
    found = {name: compare(name, tmp_path / "run", tmp_path / "other") for name in CONFIGURATIONS}
    assert {name for name, what in found.items() if what == ["run breaks one"]} == BY_INVARIANTS
    assert all(what == ["4 folders differ"] for name, what in found.items() if name not in BY_INVARIANTS)


def test_the_page_says_which_configurations_are_compared_how():
    exact, clock = "\n".join(how_compared(["async"])), "\n".join(how_compared(["partial"]))
    assert exact.startswith("Bit for bit (async):") and "invariants" not in exact
    assert clock.startswith("By invariants (partial)") and "Bit for bit" not in clock
    assert how_compared(["async", "partial"]) == how_compared(["async"]) + how_compared(["partial"])
