"""What the doctor says: one finding a line, with the remedy where there is something to do."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from openrlhf_rpo.cache.errors import CacheError
from openrlhf_rpo.cli.cache.output import visible
from openrlhf_rpo.config import OptionError
from openrlhf_rpo.exchange.errors import ExchangeError
from openrlhf_rpo.upstream import UpstreamError, UsageError

PASS, WARN, FAIL = "pass", "warn", "fail"
_STYLE = {PASS: "green", WARN: "yellow", FAIL: "bold red"}
EXPECTED = (UsageError, OptionError, UpstreamError, CacheError, ExchangeError)
"""Errors whose message already says what is wrong and what to do."""


@dataclass(frozen=True)
class Finding:
    """``level`` is PASS, WARN or FAIL; ``remedy`` is empty where nothing is to be done or the message says it."""

    level: str
    topic: str
    message: str
    remedy: str = ""


def attempt(topic: str, check: Callable[[], str]) -> Finding:
    """The finding of a check that returns what it found, or raises one of EXPECTED."""
    try:
        return Finding(PASS, topic, check())
    except EXPECTED as error:
        return Finding(FAIL, topic, str(error))


class Report:
    """Findings in the order in which they are made, each shown at once; ``as_json`` shows one document at the end."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.findings: list[Finding] = []
        self._console = Console(highlight=False)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings from a check that makes them one by one."""
        for finding in findings:
            self.findings.append(finding)
            if not self.as_json:
                self._show(finding)

    @property
    def failed(self) -> bool:
        return any(finding.level == FAIL for finding in self.findings)

    def document(self) -> dict[str, Any]:
        counts = {level: self._count(level) for level in (PASS, WARN, FAIL)}
        return {"status": FAIL if self.failed else PASS, **counts, "findings": [asdict(f) for f in self.findings]}

    def summary(self) -> str:
        return f"{self._count(PASS)} passed, {self._count(WARN)} to look at, {self._count(FAIL)} failed"

    def _count(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)

    def _show(self, finding: Finding) -> None:
        line = Text(f"{finding.level}  ", style=_STYLE[finding.level])
        line.append(f"{finding.topic}: ", style="bold")
        line.append(_indented(finding.message), style="")
        if finding.remedy:
            line.append(f"\n      -> {_indented(finding.remedy)}", style="cyan")
        self._console.print(line, soft_wrap=True)


def _indented(text: str) -> str:
    return visible(text).replace("\n", "\n      ")


def listed(words: Sequence[str]) -> str:
    """Words with commas, "none" without any."""
    return ", ".join(words) or "none"
