"""When the alerts of runs are planned: requested in the transaction of the evaluation that causes
them, and taken by one process at a time."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from sqlalchemy import ColumnElement, Connection, func, select, update

from gradledger_monitor.model.findings import Finding
from gradledger_monitor.store import dialects
from gradledger_monitor.store.alerts.tables import alert_plans
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import runs

RECENT_SECONDS = 24 * 3600.0  # of the runs that are planned again if channels or routes change


def request(connection: Connection, run: int, findings: Iterable[Finding], now: float) -> None:
    """Request a plan for a run if its findings changed in a way that alerts depend on."""
    digest = _digest(findings)
    statement = dialects.insert(connection, alert_plans)
    statement = statement.values(run=run, digest=digest, due=now if digest else None)
    values = {"digest": digest, "due": now}
    changed = alert_plans.c.digest != digest
    connection.execute(
        statement.on_conflict_do_update(index_elements=["run"], set_=values, where=changed)
    )


def request_again(connection: Connection, run: int, now: float) -> None:
    """Request a plan for a run for a reason other than an evaluation."""
    connection.execute(update(alert_plans).where(alert_plans.c.run == run).values(due=now))


def request_all(connection: Connection, now: float) -> None:
    """Request plans for all recent runs, because channels or routes changed."""
    recent = select(runs.c.key).where(is_recent(now))
    connection.execute(update(alert_plans).where(alert_plans.c.run.in_(recent)).values(due=now))


def is_recent(now: float) -> ColumnElement[bool]:
    """The condition of the runs that are planned again if channels or routes change."""
    return runs.c.last_seen > now - RECENT_SECONDS


def next_due(store: Store) -> float | None:
    """When the next run is due, in Unix seconds."""
    with store.reading() as connection:
        due: float | None = connection.scalar(select(func.min(alert_plans.c.due)))
    return due


def claim_run(connection: Connection, now: float) -> int | None:
    """A run that is due, locked until the end of the transaction."""
    query = select(alert_plans.c.run).where(alert_plans.c.due <= now).order_by(alert_plans.c.due)
    return connection.scalar(query.limit(1).with_for_update(skip_locked=True))


def set_due(connection: Connection, run: int, due: float | None) -> None:
    """Set when a run is due again; None: when its findings change."""
    connection.execute(update(alert_plans).where(alert_plans.c.run == run).values(due=due))


def _digest(findings: Iterable[Finding]) -> str:
    keys = [
        (f.rule, f.optimizer, f.severity, f.lifecycle == "resolved", f.inhibited_by, f.since_step)
        for f in findings
    ]
    return sha256(repr(sorted(keys, key=repr)).encode()).hexdigest() if keys else ""
