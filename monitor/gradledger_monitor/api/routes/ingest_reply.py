"""What a training process hears of its own run, with the acknowledgement of its records."""

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

ASKS = "gradledger-findings"  # the header by which a sender asks, with the name of what it knows
MOST = 20
MOST_TEXT = 2_000


def reply(store: Store, run: str, known: str) -> dict[str, Any]:
    """The findings of a run that count, under a name of their own; not again those of ``known``."""
    now = clock.now()
    with store.reading() as connection:
        key = connection.scalar(select(runs.c.key).where(runs.c.id == run))
        found = [] if key is None else queries.current_findings(connection, key, now)
    news = [one for one in found if _counts(one)][:MOST]
    name = _name(news)
    return {"findings_id": name, "findings": [] if name == known else [_told(one) for one in news]}


def _counts(one: Finding) -> bool:
    muted = one.inhibited_by is not None or one.acknowledged is not None
    return one.lifecycle != "resolved" and not muted


def _name(findings: list[Finding]) -> str:
    said = [(one.rule, one.optimizer, one.severity, one.since_step) for one in findings]
    return sha256(repr(said).encode()).hexdigest()[:16]


def _told(one: Finding) -> dict[str, Any]:
    texts = {name: cut(getattr(one, name), MOST_TEXT) for name in ("title", "summary", "fix")}
    since = one.since_step or one.first_step
    told = {"rule": one.rule, "severity": one.severity, "optimizer": one.optimizer}
    return {**told, "since_step": since, **texts}
