"""What was checked, and which of its findings are reasons to fail (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gradledger_monitor.model.findings import SEVERITIES, EvaluationResult, Finding


@dataclass(frozen=True)
class Checked:
    """One training of the command, judged."""

    name: str
    steps: int
    ranks: int
    evaluation: EvaluationResult


@dataclass(frozen=True)
class Gate:
    """What fails: the least severity, and by rule the severity up to which it is known already."""

    least: str = "warning"
    known: Mapping[str, str] = field(default_factory=dict)

    def fails(self, finding: Finding) -> bool:
        """Whether a finding is a reason to fail."""
        return self.excuse(finding) is None

    def excuse(self, finding: Finding) -> str | None:
        """Why a finding is no reason to fail; None where it is one."""
        if finding.inhibited_by is not None:
            return f"a symptom of {finding.inhibited_by}"
        if finding.acknowledged is not None:
            return f"acknowledged: {finding.acknowledged.note}"
        if _rank(finding.severity) < _rank(self.least):
            return f"below {self.least}"
        before = self.known.get(finding.rule)
        if before is not None and _rank(finding.severity) <= _rank(before):
            return "in the baseline"
        return None


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity)


def baseline(text: str) -> dict[str, str]:
    """By rule, the worst that a verdict (``gradledger check --json``) had found.

    Raises ValueError where it is no verdict.
    """
    told = json.loads(text)
    try:
        found = [(each["rule"], each["severity"]) for each in told["findings"]]
        known: dict[str, str] = {}
        for rule, severity in found:
            known[rule] = max(known.get(rule, severity), severity, key=_rank)
    except (KeyError, TypeError) as error:
        raise ValueError("it is no verdict that `gradledger check --json` wrote") from error
    return known


def reported(checked: list[Checked]) -> Iterator[tuple[Checked, Finding]]:
    """All findings that stand for themselves, with their training."""
    for one in checked:
        yield from ((one, f) for f in one.evaluation.findings if f.inhibited_by is None)
