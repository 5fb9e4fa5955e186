"""GitHub's workflow commands: findings as annotations of a run and of a pull request (pure).

Documented as "Workflow commands for GitHub Actions": ``::error file=..,title=..::message``.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradledger_monitor.gate.result import CheckedRun, Gate, root_findings
from gradledger_monitor.model.code.locations import in_repository
from gradledger_monitor.model.findings import Finding, fix_title

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def workflow_commands(runs: list[CheckedRun], gate: Gate, script: str) -> Iterator[str]:
    """One line for each finding."""
    for _, finding in root_findings(runs):
        command = _COMMANDS[finding.severity] if gate.fails(finding) else "notice"
        title = _escaped_property(f"{finding.rule}: {finding.title}")
        message = _escaped(f"{finding.summary}{_fix(finding)}")
        yield f"::{command} {_position(finding, script)},title={title}::{message}"


def _position(finding: Finding, script: str) -> str:
    location = in_repository(finding.code)
    if location is None:
        return f"file={_escaped_property(script)}"
    end = f",endLine={location.end_line}" if location.end_line else ""
    return f"file={_escaped_property(location.file)},line={location.line}{end}"


def _fix(finding: Finding) -> str:
    return f"\n\n{fix_title(finding.fix)}:\n{finding.fix.strip()}" if finding.fix else ""


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
