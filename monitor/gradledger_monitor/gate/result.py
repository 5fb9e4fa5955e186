"""The checked runs of a command, and the findings that fail the check (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType

from gradledger_monitor.evaluation.result import is_history
from gradledger_monitor.model.code.revision import NOT_KNOWN, Revision
from gradledger_monitor.model.findings import SEVERITIES, EvaluationResult, Finding
from gradledger_monitor.reports.objectives import ObjectiveSummary
from gradledger_monitor.reports.terminal import report
from gradledger_monitor.reports.topology import RunTopology
from gradledger_monitor.rules.docs import rules_by_id


@dataclass(frozen=True)
class CheckedRun:
    """One run of the command with its evaluation."""

    name: str
    steps: int
    ranks: int
    evaluation: EvaluationResult
    objectives: Sequence[ObjectiveSummary] = ()
    topology: RunTopology | None = None
    revision: Revision = NOT_KNOWN

    @property
    def absent(self) -> Mapping[int, int | None]:
        """The ranks without a record of the last step, with their last one."""
        return self.topology.absent if self.topology else {}

    def report(self) -> RenderableType:
        """What a person reads in a terminal."""
        return report(
            self.name,
            self.steps,
            self.ranks,
            self.evaluation,
            self.absent,
            self.revision.text,
            self.objectives,
        )


@dataclass(frozen=True)
class Gate:
    """The severity that fails a check, and the severities that a baseline allows, by rule."""

    fail_on: str = "warning"
    baseline: Mapping[str, str] = field(default_factory=dict)

    def fails(self, finding: Finding) -> bool:
        """Whether a finding fails the check."""
        return self.excuse(finding) is None

    def excuse(self, finding: Finding) -> str | None:
        """Why a finding does not fail the check; None if it does."""
        if finding.inhibited_by is not None:
            return f"a symptom of {finding.inhibited_by}"
        if finding.acknowledged is not None:
            return f"acknowledged: {finding.acknowledged.note}"
        if _rank(finding.severity) < _rank(self.fail_on):
            return f"below {self.fail_on}"
        if is_history(finding, rules_by_id().get(finding.rule)):
            return f"resolved: not after step {finding.last_step:,}"
        allowed = self.baseline.get(finding.rule)
        if allowed is not None and _rank(finding.severity) <= _rank(allowed):
            return "in the baseline"
        return None


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity)


def read_baseline(text: str) -> dict[str, str]:
    """The worst severity of each rule in the JSON of ``gradledger check --json``.

    Raises ValueError if the text is not such a verdict.
    """
    verdict = json.loads(text)
    worst: dict[str, str] = {}
    try:
        for finding in verdict["findings"]:
            rule, severity = finding["rule"], finding["severity"]
            worst[rule] = max(worst.get(rule, severity), severity, key=_rank)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("this is not a verdict written by `gradledger check --json`") from error
    return worst


def root_findings(runs: list[CheckedRun]) -> Iterator[tuple[CheckedRun, Finding]]:
    """The findings that no other finding explains, with their runs."""
    for run in runs:
        yield from ((run, f) for f in run.evaluation.findings if f.inhibited_by is None)
