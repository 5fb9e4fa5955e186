"""The findings that a training process gets with the acknowledgement of its records."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from sqlalchemy import select

from gradledger_monitor.alerts.payload import cut
from gradledger_monitor.common import clock
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.tables import runs

HEADER = "gradledger-findings"  # requests the findings; its value is the ``findings_id`` so far
MAX_FINDINGS = 20
MAX_TEXT = 2_000
# What the training process needs to write a verdict that includes all of its records.
RUN_STATE = ("verdict", "steps", "revision", "evaluated_revision", "ended")


def reply(store: Store, run: str, findings_id: str) -> dict[str, Any]:
    """The active findings of a run and their id; no findings if the id has not changed."""
    now = clock.now()
    with store.reading() as connection:
        row = connection.execute(select(runs).where(runs.c.id == run)).one_or_none()
        findings = [] if row is None else queries.current_findings(connection, row.key, now)
    active = [finding for finding in findings if _is_active(finding)][:MAX_FINDINGS]
    current_id = _id_of(active)
    changed = [] if current_id == findings_id else [_notice(finding) for finding in active]
    state = None if row is None else {name: row._mapping[name] for name in RUN_STATE}
    return {"findings_id": current_id, "findings": changed, "run": state}


def _is_active(finding: Finding) -> bool:
    muted = finding.inhibited_by is not None or finding.acknowledged is not None
    return finding.lifecycle != "resolved" and not muted


def _id_of(findings: list[Finding]) -> str:
    content = [(f.rule, f.optimizer, f.severity, f.since_step) for f in findings]
    return sha256(repr(content).encode()).hexdigest()[:16]


def _notice(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "optimizer": finding.optimizer,
        "since_step": finding.since_step or finding.first_step,
        "title": cut(finding.title, MAX_TEXT),
        "summary": cut(finding.summary, MAX_TEXT),
        "fix": cut(finding.fix, MAX_TEXT),
    }
