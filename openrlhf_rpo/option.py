"""Options are fields of frozen dataclasses, each with its default, one line of help, and its bounds.

The parser, the checks and docs/options.md are generated from these fields; no default or bound is defined elsewhere.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from openrlhf_rpo.errors import OptionError


@dataclass(frozen=True)
class Bounds:
    """The numbers from ``low`` to ``high``, and inf if ``infinite``; ``open`` excludes the lower and the upper end."""

    low: float = -math.inf
    high: float = math.inf
    open: tuple[bool, bool] = (False, False)
    infinite: bool = False

    def admit(self, value: float) -> bool:
        """Whether ``value`` is within the bounds."""
        above = value > self.low if self.open[0] else value >= self.low
        below = value < self.high if self.open[1] else value <= self.high
        return (_finite(value) or (self.infinite and value == math.inf)) and above and below

    def __str__(self) -> str:
        low = f"{'above' if self.open[0] else 'at least'} {_plain(self.low)}" if self.low > -math.inf else ""
        high = f"{'below' if self.open[1] else 'at most'} {_plain(self.high)}" if self.high < math.inf else ""
        return " and ".join(filter(None, (low, high))) or "any finite number"


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # a large int is no float


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


FINITE = Bounds()
SHARE = Bounds(0, 1)
SHARE_BELOW_ONE = Bounds(0, 1, (False, True))
SHARE_ABOVE_ZERO = Bounds(0, 1, (True, False))
NOT_NEGATIVE = Bounds(0)
POSITIVE = Bounds(0, open=(True, False))
AT_LEAST_ONE = Bounds(1)


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    bounds: Bounds | None = None,
    parse: Callable[[str], Any] | None = None,
    may_change: bool = False,
    alias: str | None = None,
) -> Any:
    """A dataclass field that is also a command line option.

    ``parse`` converts the argument when the field's type is not enough. ``may_change``: a resumed run may use another
    value, because sampling and training do not depend on it. ``alias``: ``--rpo.ALIAS`` means the same.
    """
    known = {"help": help, "choices": choices, "bounds": bounds, "parse": parse, "may_change": may_change, "alias": alias}
    return field(default=default, metadata=known)


def options_of(group: type) -> dict[str, Any]:
    """Field name -> field, for every option in a group."""
    return {f.name: f for f in fields(group) if "help" in f.metadata}


def need(condition: object, name: str, value: object, rule: object) -> None:
    """Raise OptionError with the option (given without ``--rpo.``), its value and the rule, unless ``condition``."""
    if not condition:
        raise OptionError(f"--rpo.{name} {value}: {rule}")


def check_bounds(group: Any, names: dict[str, str]) -> None:
    """Raise OptionError for a field outside its bounds. ``names``: field -> option without ``--rpo.``."""
    for name, f in options_of(type(group)).items():
        value, bounds = getattr(group, name), f.metadata["bounds"]
        if bounds is not None and value is not None:
            need(bounds.admit(value), names[name], value, bounds)


def add_option(parser: argparse._ArgumentGroup, name: str, f: Any, note: str = "") -> None:
    """Add ``--rpo.NAME`` for a field; the help shows ``note`` after the default."""
    assert f.default is not MISSING
    alias = f.metadata["alias"]
    parser.add_argument(
        f"--rpo.{name}",
        *([f"--rpo.{alias}"] if alias else []),
        dest=f"rpo.{name}",
        type=f.metadata["parse"] or (parse_bool if isinstance(f.default, bool) else value_type(f)),
        default=f.default,
        choices=f.metadata["choices"] or None,
        help=f.metadata["help"].replace("%", "%%") + f" (default: {f.default}{note})",
    )


def value_type(f: Any) -> type:
    """int, float or str, from the field's annotation, which may be a string."""
    named = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
    return next((kind for kind in (float, int) if kind.__name__ in named.split()), str)


def parse_bool(text: str) -> bool:
    """A truth value from text. Raises ArgumentTypeError."""
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, not {text!r}")


def number_or_off(text: str) -> float | None:
    """A number, or None for "off". Raises ArgumentTypeError."""
    try:
        return None if text == "off" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or off, not {text!r}") from None


def parse_amount(name: str, text: str, kinds: dict[str, Bounds]) -> tuple[str, float]:
    """("ratio", 0.5) from "ratio:0.5". Raises OptionError for an unknown kind or a number out of bounds."""
    kind, _, number = text.partition(":")
    expected = " or ".join(f"{k}:NUMBER" for k in kinds)
    need(kind in kinds, name, text, f"expected {expected}")
    try:
        value = float(number)
    except ValueError:
        raise OptionError(f"--rpo.{name} {text}: {number!r} is not a number; expected {expected}") from None
    need(kinds[kind].admit(value), name, text, f"the number of {kind} must be {kinds[kind]}")
    return kind, value
