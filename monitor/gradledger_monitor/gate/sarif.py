"""SARIF 2.1.0 (OASIS), which code scanning shows beside the script that trains (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import gradledger
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.gate.result import Checked, Gate, reported
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import headline, markdown, rules_by_id

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(checked: list[Checked], gate: Gate, script: str) -> str:
    """The file's content; findings are shown at ``script``, the path that was run."""
    rules = list(rules_by_id())
    driver = {
        "name": "gradledger",
        "semanticVersion": gradledger.__version__,
        "rules": [_rule(name) for name in rules],
    }
    results = [_result(one, f, gate, script, rules) for one, f in reported(checked)]
    told = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return (
        json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [told]}, indent=2, default=str)
        + "\n"
    )


def _rule(name: str) -> dict[str, Any]:
    signature = rules_by_id()[name]
    manual = markdown(signature)
    return {
        "id": name,
        "shortDescription": {"text": headline(signature)},
        "help": {"text": manual, "markdown": manual},
    }


def _result(
    one: Checked, finding: Finding, gate: Gate, script: str, rules: Sequence[str]
) -> dict[str, Any]:
    """Whoever reads it tells results apart by fingerprint: the training and the rule."""
    place = {"artifactLocation": {"uri": script}, "region": {"startLine": 1}}
    identity = f"{one.name}|{finding.rule}|{finding.optimizer}"
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.title}. {finding.summary}"},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"gradledger/v1": sha256(identity.encode()).hexdigest()[:32]},
        "properties": {"evidence": json_safe(finding.evidence)},
    }
    excuse = gate.excuse(finding)
    if excuse is not None:
        result["suppressions"] = [{"kind": "external", "justification": excuse}]
    return result
