"""The answer of a run as JSON, in the form that other tools depend on (pure)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gradledger_monitor.model.findings import EvaluationResult, Finding

_FINDING = (
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


def verdict_json(run: str, steps: int, ranks: int, evaluation: EvaluationResult) -> dict[str, Any]:
    """What ``gradledger check --json`` writes and ``/api/v1/runs/{run}/verdict`` answers."""
    return {
        "run": run,
        "verdict": evaluation.verdict,
        "steps": steps,
        "ranks": ranks,
        "findings": [_finding(finding) for finding in evaluation.findings],
        "tree": [asdict(node) for node in evaluation.tree],
        "coverage": evaluation.coverage,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    said = finding.acknowledged
    told = {name: getattr(finding, name) for name in _FINDING}
    return told | {"acknowledged": asdict(said) if said else None}
