"""SARIF 2.1.0 (OASIS): findings as code scanning results at their lines of the script (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import gradledger
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.gate.result import CheckedRun, Gate, root_findings
from gradledger_monitor.gate.version_control import VersionControl
from gradledger_monitor.model.code.locations import LABELS, CodeLocation, is_in_repository
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import headline, markdown, rules_by_id

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(
    runs: list[CheckedRun], gate: Gate, script: str, version: VersionControl | None = None
) -> str:
    """The content of the file. Findings without a line are attached to the path ``script``."""
    rules = list(rules_by_id())
    driver = {
        "name": "gradledger",
        "semanticVersion": gradledger.__version__,
        "rules": [_rule(name) for name in rules],
    }
    results = [_result(run, f, gate, script, rules) for run, f in root_findings(runs)]
    sarif_run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    if version is not None:
        sarif_run["versionControlProvenance"] = [_details(version)]
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [sarif_run]}
    return json.dumps(document, indent=2, default=str) + "\n"


def _details(version: VersionControl) -> dict[str, str]:
    details = {"repositoryUri": version.repository, "revisionId": version.revision}
    return details if version.branch is None else {**details, "branch": version.branch}


def _rule(name: str) -> dict[str, Any]:
    signature = rules_by_id()[name]
    manual = markdown(signature)
    return {
        "id": name,
        "shortDescription": {"text": headline(signature)},
        "help": {"text": manual, "markdown": manual},
    }


def _result(
    run: CheckedRun, finding: Finding, gate: Gate, script: str, rules: Sequence[str]
) -> dict[str, Any]:
    """One result. Its fingerprint, by which readers match results, is the run and the rule."""
    code = [location for location in finding.code if is_in_repository(location)]
    location = _physical(code[0]) if code else _start_of(script)
    identity = f"{run.name}|{finding.rule}|{finding.optimizer}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.title}. {finding.summary}"},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"gradledger/v1": sha256(identity.encode()).hexdigest()[:32]},
        "properties": {"evidence": json_safe(finding.evidence)},
    }
    if code[1:]:
        result["relatedLocations"] = [_related(location) for location in code[1:]]
    excuse = gate.excuse(finding)
    if excuse is not None:
        result["suppressions"] = [{"kind": "external", "justification": excuse}]
    return result


def _start_of(script: str) -> dict[str, Any]:
    return {"artifactLocation": {"uri": script}, "region": {"startLine": 1}}


def _physical(location: CodeLocation) -> dict[str, Any]:
    """A location as SARIF has it: columns from 1, and the end column is the one after the last."""
    region = {
        "startLine": location.line,
        "startColumn": location.column,
        "endLine": location.end_line,
        "endColumn": location.end_column,
    }
    present = {name: number for name, number in region.items() if number is not None}
    return {"artifactLocation": {"uri": quote(location.file)}, "region": present}


def _related(location: CodeLocation) -> dict[str, Any]:
    label = LABELS[location.role]
    return {"physicalLocation": _physical(location), "message": {"text": label}}
