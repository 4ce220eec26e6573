"""The doctor's findings, one a line, each with a remedy where something is wrong."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from openrlhf_rpo.errors import UserError, visible, without_credentials

PASS, WARN, FAIL = "pass", "warn", "fail"
_STYLE = {PASS: "green", WARN: "yellow", FAIL: "bold red"}


@dataclass(frozen=True)
class Finding:
    """``level`` is PASS, WARN or FAIL; ``remedy`` is empty if nothing needs doing or the message says what."""

    level: str
    topic: str
    message: str
    remedy: str = ""


def attempt(topic: str, check: Callable[[], str]) -> Finding:
    """The finding of a check that returns a message, or raises a UserError."""
    try:
        return Finding(PASS, topic, check())
    except UserError as error:
        return Finding(FAIL, topic, str(error))


class Report:
    """Collects findings in order, and prints each at once unless ``as_json``."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.findings: list[Finding] = []
        self._console = Console(highlight=False)

    def add(self, findings: Iterable[Finding]) -> None:
        for found in findings:
            finding = replace(found, message=without_credentials(found.message))
            self.findings.append(finding)
            if not self.as_json:
                self._show(finding)

    @property
    def failed(self) -> bool:
        return any(finding.level == FAIL for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """The output of ``--json``."""
        findings = [asdict(finding) for finding in self.findings]
        return {"status": FAIL if self.failed else PASS, **self._counts(), "findings": findings}

    def summary(self) -> str:
        passed, warned, failed = self._counts().values()
        return f"{passed} passed, {warned} warnings, {failed} failed"

    def _counts(self) -> dict[str, int]:
        return {level: sum(finding.level == level for finding in self.findings) for level in (PASS, WARN, FAIL)}

    def _show(self, finding: Finding) -> None:
        line = Text(f"{finding.level}  ", style=_STYLE[finding.level])
        line.append(f"{finding.topic}: ", style="bold")
        line.append(_indented(finding.message))
        if finding.remedy:
            line.append(f"\n      -> {_indented(finding.remedy)}", style="cyan")
        self._console.print(line, soft_wrap=True)


def _indented(text: str) -> str:
    return visible(text).replace("\n", "\n      ")


def listed(words: Sequence[str]) -> str:
    """Words joined with commas, or "none"."""
    return ", ".join(words) or "none"
