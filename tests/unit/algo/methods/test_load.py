"""Laws of methods as plug points: named, listed, and a user's own."""

import random
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import pytest

from openrlhf_rpo.algo.methods import METHODS, RPO, Cut, Method, MethodError, Stored, method_class, method_of, option_names
from openrlhf_rpo.errors import OptionError
from openrlhf_rpo.option import AT_LEAST_ONE, option
from openrlhf_rpo.types import Path

OWN_METHOD = """
from openrlhf_rpo.algo.methods import RPO
from openrlhf_rpo.option import SHARE, option

SHARE_OF_ALL = 0.5


class Middle(RPO):
    middle_share: float = option(0.5, "share of the path that is kept", bounds=SHARE)

    def cuts(self, cut):
        return cut.alike(lambda: len(cut.path) - int(self.middle_share * len(cut.path)))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN_METHOD)
    return path


def cut(n=4, length=10):
    path = Path("q", tuple(range(length)), (-0.5,) * length, "stop", 1.0, 1.0)
    return Cut((path,) * n, random.Random(0), (), (path.log_probs,) * n)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_by_its_name(name):
    assert method_class(name) is METHODS[name] and METHODS[name].name == name


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind().paths(Stored({0: cut().path}), 4)])
def test_a_method_answers_with_a_cut_that_fits_for_each_sample(name):
    for length in (1, 2, 10, 100):
        cuts = METHODS[name]().cuts(cut(length=length))
        assert len(cuts) == 4 and all(0 <= m <= length for m in cuts)


def test_a_class_in_a_file_is_a_method_with_options_of_its_own(file):
    kind = method_class(f"{file}:Middle")
    assert (kind.name, option_names(kind)["middle_share"]) == ("middle", "middle.share")
    assert kind().cuts(cut()) == (5, 5, 5, 5) and kind(middle_share=0.8).cuts(cut()) == (2, 2, 2, 2)
    assert method_class(f"{file}:Middle") is kind  # loaded once


def test_options_are_read_from_the_command_line_and_checked(file):
    groups = {name.split(".")[0]: SimpleNamespace() for name in option_names(RPO).values()}
    rpo = SimpleNamespace(method=f"{file}:Middle", **groups, middle=SimpleNamespace(share=0.25))
    for field, name in option_names(RPO).items():
        setattr(getattr(rpo, name.split(".")[0]), name.split(".", 1)[1], getattr(RPO(), field))
    assert method_of(rpo).middle_share == 0.25
    rpo.middle.share = 1.5
    with pytest.raises(OptionError, match="--rpo.middle.share 1.5: at least 0 and at most 1"):
        method_of(rpo)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("middle", "expected rpo, paper, verify, off, or FILE.py:NAME"),
        ("missing.py:Rule", "there is no file 'missing.py'"),
        ("{file}:Upper", "has no 'Upper'"),
        ("{file}:SHARE_OF_ALL", "'SHARE_OF_ALL' is no subclass of openrlhf_rpo.algo.methods.method.Method"),
        ("{broken}:Rule", "cannot be imported: ZeroDivisionError"),
        ("{leaving}:Rule", "cannot be imported: SystemExit: 0"),
        ("{strange}:Rule", "cannot be imported: GeneratorExit"),
    ],
)
def test_a_method_that_cannot_be_loaded_is_named(file, tmp_path, spec, message):
    broken, leaving, strange = (tmp_path / f"{name}.py" for name in ("broken", "leaving", "strange"))
    broken.write_text("1 / 0")
    leaving.write_text("import sys; sys.exit(0)")
    strange.write_text("raise GeneratorExit")
    spec = spec.format(file=file, broken=broken, leaving=leaving, strange=strange)
    with pytest.raises(MethodError, match=message) as raised:
        method_class(spec)
    assert str(raised.value).startswith(f"--rpo.method {spec}: ")


def test_a_subclass_needs_no_decorator_and_cannot_be_changed():
    class Own(Method):
        own_number: int = option(3, "a number", bounds=AT_LEAST_ONE)

    assert Own(own_number=4).own_number == 4
    with pytest.raises(FrozenInstanceError):
        Own().own_number = 5


def test_a_former_annotation_as_text_is_a_number_all_the_same(tmp_path):
    """As ``from __future__ import annotations`` leaves it."""
    (tmp_path / "texts.py").write_text(f"from __future__ import annotations\n{OWN_METHOD}")
    from openrlhf_rpo.option import options_of, value_type

    kind = method_class(f"{tmp_path}/texts.py:Middle")
    assert value_type(options_of(kind)["middle_share"]) is float
