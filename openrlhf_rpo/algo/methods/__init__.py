"""The shipped methods, one per file. ``--rpo.method`` takes one of their names, or FILE.py:NAME for a class of yours."""

from operator import attrgetter
from types import SimpleNamespace

from openrlhf_rpo.algo.methods.load import MethodError, load
from openrlhf_rpo.algo.methods.method import Choice, Cut, Method, Scored, Stored, every
from openrlhf_rpo.algo.methods.off import Off
from openrlhf_rpo.algo.methods.paper import Paper
from openrlhf_rpo.algo.methods.replay import Replay
from openrlhf_rpo.algo.methods.rpo import RPO
from openrlhf_rpo.algo.methods.verify import Verify
from openrlhf_rpo.option import check_bounds, options_of

METHODS: dict[str, type[Method]] = {method.name: method for method in (RPO, Paper, Verify, Off)}


def method_class(name: str) -> type[Method]:
    """The shipped method of that name, or the class named by FILE.py:NAME. Raises MethodError."""
    if name in METHODS:
        return METHODS[name]
    if ".py:" not in name:
        raise MethodError(f"--rpo.method {name}: expected {', '.join(METHODS)}, or FILE.py:NAME, a class in a file of yours")
    return load(name, Method)


def method_of(rpo: SimpleNamespace) -> Method:
    """The method that ``args.rpo`` asks for, with checked options. Raises MethodError or OptionError."""
    kind = method_class(rpo.method)
    names = option_names(kind)
    method = kind(**{field: attrgetter(name)(rpo) for field, name in names.items()})
    check_bounds(method, names)
    method.check()
    return method


def option_names(kind: type[Method]) -> dict[str, str]:
    """Field -> option name without ``--rpo.``: ``cut_max`` -> ``cut.max``."""
    return {field: field.replace("_", ".", 1) for field in options_of(kind)}


def methods_with(option: str) -> list[str]:
    """The shipped methods that have ``option`` (without ``--rpo.``)."""
    return [name for name, kind in METHODS.items() if option in option_names(kind).values()]


__all__ = [
    "METHODS",
    "RPO",
    "Choice",
    "Cut",
    "Method",
    "MethodError",
    "Off",
    "Paper",
    "Replay",
    "Scored",
    "Stored",
    "Verify",
    "every",
    "method_class",
    "method_of",
    "methods_with",
    "option_names",
]
