"""What people say of findings: written, and taken back. ``reading.judgement`` shows it."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import ColumnElement, and_, delete, insert, select

from gradledger_monitor.common import clock
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.store.alerts import due
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import acknowledgements, findings


class NoSuchFinding(LookupError):
    """The rule found nothing in this run, or nobody acknowledged what it found."""


def acknowledge(store: Store, run: str, rule: str, said: Acknowledgement) -> None:
    """Mark what a rule found in a run as known, in place of what was said of it before.

    It covers the finding as it stands: once resolved and back again, it is news. Raises
    ``UnknownRun``, and ``NoSuchFinding`` where the rule found nothing.
    """
    with store.writing() as connection:
        key = require_run(connection, run).key
        query = select(findings.c.optimizer, findings.c.last_step)
        found = connection.execute(query.where(findings.c.run == key, findings.c.rule == rule))
        rows = [
            {"run": key, "rule": rule, "optimizer": optimizer, "last_step": step, **asdict(said)}
            for optimizer, step in found
        ]
        if not rows:
            raise NoSuchFinding(f"{rule} found nothing in run {run!r}")
        connection.execute(delete(acknowledgements).where(_of(key, rule)))
        connection.execute(insert(acknowledgements), rows)
        due.request_again(connection, key, clock.now())


def remove_acknowledgement(store: Store, run: str, rule: str) -> None:
    """Forget what was said of a finding. Raises ``UnknownRun`` and ``NoSuchFinding``."""
    with store.writing() as connection:
        key = require_run(connection, run).key
        if not connection.execute(delete(acknowledgements).where(_of(key, rule))).rowcount:
            raise NoSuchFinding(f"nobody acknowledged {rule} in run {run!r}")
        due.request_again(connection, key, clock.now())


def _of(key: int, rule: str) -> ColumnElement[bool]:
    return and_(acknowledgements.c.run == key, acknowledgements.c.rule == rule)
