"""How the sub-commands speak: tables and coloured text for people, one JSON document for programs (``--json``).

A model's output and a data set's text are shown as they are and never interpreted: markup is not read, and control
characters, which could rewrite the terminal, are shown as escapes.
"""

import json
import math
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from openrlhf_rpo.upstream import UsageError

_HARMLESS = "\n\t"
_WIDE = 1000
_LEFT = ("question", "question_id", "outcome", "finish_reason")
# Control, format (direction overrides, zero width), surrogate and private characters, line and paragraph separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def visible(text: str) -> str:
    """The text with every character that a terminal might obey written as an escape."""
    return "".join(
        c.encode("unicode_escape").decode() if c not in _HARMLESS and unicodedata.category(c) in _UNSAFE else c for c in text
    )


class Output:
    """Where a sub-command writes; with ``as_json`` only ``emit``'s document appears on standard output."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # A pipe has no width to fold at.
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)

    def emit(self, document: dict[str, Any]) -> None:
        """The whole answer for programs: numbers that are not finite are null."""
        if self.as_json:
            print(json.dumps(_finite(document), indent=2, allow_nan=False))

    def line(self, text: str, style: str = "") -> None:
        """Text as it is, lines of any length."""
        if not self.as_json:
            self.console.print(Text(visible(text), style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """What a reader should know, on standard error, so that it also stands beside JSON."""
        print(visible(text), file=sys.stderr)

    def pairs(self, document: dict[str, Any]) -> None:
        """Names and values, one pair a line."""
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column()
        table.add_column(overflow="fold")
        for name, value in document.items():
            table.add_row(Text(name.replace("_", " "), style="dim"), Text(_shown(value)))
        self._print(table)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Values under column names; numbers stand on the right."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            table.add_column(Text(name.replace("_", " ")), justify="left" if name in _LEFT else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(_shown(value)) for value in row))
        self._print(table)

    def _print(self, table: Table) -> None:
        if not self.as_json:
            self.console.print(table)


def confirm(question: str, yes: bool) -> bool:
    """Whether to go on: ``--yes``, or the answer of a person. Raises UsageError where nobody can be asked."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say so with --yes (there is no terminal to ask at)")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items()) or "-"
    return visible(str(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
