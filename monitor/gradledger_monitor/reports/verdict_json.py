"""The verdict of a run as JSON: a public format (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gradledger_monitor.model.code.revision import NOT_KNOWN, Revision
from gradledger_monitor.model.findings import EvaluationResult, Finding, is_generic
from gradledger_monitor.reports.objectives import ObjectiveSummary
from gradledger_monitor.reports.topology import RunTopology

_FINDING_FIELDS = (
    "rule",
    "severity",
    "first_step",
    "last_step",
    "steps",
    "title",
    "summary",
    "fix",
    "evidence",
    "inhibited_by",
)


def verdict_json(
    run: str,
    steps: int,
    ranks: int,
    evaluation: EvaluationResult,
    objectives: Sequence[ObjectiveSummary] = (),
    topology: RunTopology | None = None,
    revision: Revision = NOT_KNOWN,
) -> dict[str, Any]:
    """The JSON of ``gradledger check --json`` and ``/api/v1/runs/{run}/verdict``."""
    return {
        "run": run,
        "verdict": evaluation.verdict,
        "steps": steps,
        "ranks": ranks,
        "findings": [_finding(finding) for finding in evaluation.findings],
        "tree": [asdict(node) for node in evaluation.tree],
        "coverage": evaluation.coverage,
        "objectives": [asdict(objective) for objective in objectives],
        "topology": asdict(topology) if topology else None,
        **asdict(revision),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    fields = {name: getattr(finding, name) for name in _FINDING_FIELDS}
    acknowledgement = finding.acknowledged
    return fields | {
        "fix_is_generic": is_generic(finding.fix),
        "acknowledged": asdict(acknowledgement) if acknowledgement else None,
        "code": [asdict(location) for location in finding.code],
    }
