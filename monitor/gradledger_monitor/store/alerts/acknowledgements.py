"""Acknowledgements of findings: stored and removed. ``queries.evaluation`` reads them."""

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
    """The rule has no finding in this run, or nobody acknowledged it."""


def acknowledge(store: Store, run: str, rule: str, acknowledgement: Acknowledgement) -> None:
    """Acknowledge the findings of a rule in a run, in place of an earlier acknowledgement.

    If a finding is resolved and begins again, it is no longer acknowledged. Raises ``UnknownRun``,
    and ``NoSuchFinding`` if the rule has no finding.
    """
    with store.writing() as connection:
        key = require_run(connection, run).key
        query = select(findings.c.optimizer, findings.c.last_step)
        optimizers = connection.execute(query.where(findings.c.run == key, findings.c.rule == rule))
        values = {"run": key, "rule": rule, **asdict(acknowledgement)}
        rows = [
            {"optimizer": optimizer, "last_step": step, **values} for optimizer, step in optimizers
        ]
        if not rows:
            raise NoSuchFinding(f"{rule} found nothing in run {run!r}")
        connection.execute(delete(acknowledgements).where(_of(key, rule)))
        connection.execute(insert(acknowledgements), rows)
        due.request_again(connection, key, clock.now())


def remove_acknowledgement(store: Store, run: str, rule: str) -> None:
    """Remove an acknowledgement. Raises ``UnknownRun`` and ``NoSuchFinding``."""
    with store.writing() as connection:
        key = require_run(connection, run).key
        if not connection.execute(delete(acknowledgements).where(_of(key, rule))).rowcount:
            raise NoSuchFinding(f"nobody acknowledged {rule} in run {run!r}")
        due.request_again(connection, key, clock.now())


def _of(key: int, rule: str) -> ColumnElement[bool]:
    return and_(acknowledgements.c.run == key, acknowledgements.c.rule == rule)
