"""Output of the sub-commands: tables and coloured text for people, one JSON document for programs (``--json``).

Text from models and data sets is never interpreted: markup is printed literally and control characters are escaped.
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from openrlhf_rpo.errors import UsageError, visible

_WIDE = 1000
_LEFT = ("question", "question_id", "outcome", "finish_reason")


class Output:
    """Where a sub-command writes. With ``as_json``, only the document passed to ``emit`` goes to standard output."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # Do not wrap lines in a pipe.
        self.console = Console(highlight=False, width=None if sys.stdout is not None and sys.stdout.isatty() else _WIDE)

    def emit(self, document: dict[str, Any]) -> None:
        """The JSON document; NaN and infinities become null."""
        if self.as_json:
            print(json.dumps(_finite(document), indent=2, allow_nan=False))

    def line(self, text: str, style: str = "") -> None:
        """One line of text, never wrapped."""
        if not self.as_json:
            self.console.print(Text(visible(text), style=style), soft_wrap=True)

    def note(self, text: str) -> None:
        """A remark on standard error, so that it can accompany JSON output."""
        print(visible(text), file=sys.stderr)

    def pairs(self, document: dict[str, Any]) -> None:
        """Names and values, one pair per line."""
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column()
        table.add_column(overflow="fold")
        for name, value in document.items():
            table.add_row(Text(name.replace("_", " "), style="dim"), Text(_shown(value)))
        self._print(table)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Values under column names, numbers right-aligned. No word is broken, so a table may be wider than the terminal."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        lines = [[_shown(value) for value in row] for row in rows]
        for i, name in enumerate(columns):
            title = name.replace("_", " ")
            longest = max((len(word) for text in [title, *(line[i] for line in lines)] for word in text.split()), default=0)
            table.add_column(Text(title), justify="left" if name in _LEFT else "right", min_width=longest)
        for line in lines:
            table.add_row(*map(Text, line))
        self._print(table)

    def _print(self, table: Table) -> None:
        if not self.as_json:
            self.console.print(table, crop=False)


def confirm(question: str, yes: bool) -> bool:
    """Whether to continue: ``--yes``, or the user's answer. Raises UsageError without a terminal to ask on."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} Say so with --yes (there is no terminal to ask on)")
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
        return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{visible(str(k))} {_shown(v)}" for k, v in value.items()) or "-"
    return visible(str(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(v) for name, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value
