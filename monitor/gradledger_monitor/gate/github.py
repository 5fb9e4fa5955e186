"""GitHub's workflow commands: findings as annotations of a run and of a pull request (pure).

Documented as "Workflow commands for GitHub Actions": ``::error file=..,title=..::message``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradledger_monitor.gate.result import Checked, Gate, reported
from gradledger_monitor.model.findings import Finding

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def annotated(checked: list[Checked], gate: Gate, script: str) -> Iterator[str]:
    """One line for each finding."""
    for _, finding in reported(checked):
        command = _COMMANDS[finding.severity] if gate.fails(finding) else "notice"
        where = f"file={_property(script)},title={_property(_title(finding))}"
        yield f"::{command} {where}::{_escaped(f'{finding.summary}{_fix(finding)}')}"


def _title(finding: Finding) -> str:
    return f"{finding.rule}: {finding.title}"


def _fix(finding: Finding) -> str:
    return f"\n\nfix:\n{finding.fix.strip()}" if finding.fix else ""


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
