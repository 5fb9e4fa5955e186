"""Findings with the lines of the script that their rules are about (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradledger_monitor.model.code.locations import LocationsByOptimizer, locations_for
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import rules_by_id


def with_code(findings: Sequence[Finding], located: LocationsByOptimizer) -> list[Finding]:
    """The findings, each with the locations of the optimizer that it is about."""
    rules = rules_by_id()
    return [
        replace(f, code=locations_for(rules[f.rule].points_at, located.get(f.optimizer, ())))
        if f.rule in rules
        else f
        for f in findings
    ]
