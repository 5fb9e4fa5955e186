"""Which runs alerts are to look at: asked for with the judgement that is the cause, in its
transaction, and taken up by one process at a time."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from sqlalchemy import Connection, func, select, update

from gradledger_monitor.model.findings import Finding
from gradledger_monitor.store import dialects
from gradledger_monitor.store.alerts.tables import alert_plans
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import runs

RECENT_SECONDS = 24 * 3600.0  # runs that were heard of within that time are still news


def request(connection: Connection, run: int, findings: Iterable[Finding], now: float) -> None:
    """Have alerts look at a run, if what its findings are worth telling for has changed."""
    digest = _digest(findings)
    statement = dialects.insert(connection, alert_plans)
    statement = statement.values(run=run, digest=digest, due=now if digest else None)
    told = {"digest": digest, "due": now}
    news = alert_plans.c.digest != digest
    connection.execute(
        statement.on_conflict_do_update(index_elements=["run"], set_=told, where=news)
    )


def request_again(connection: Connection, run: int, now: float) -> None:
    """Have alerts look at a run, for a reason other than a judgement."""
    connection.execute(update(alert_plans).where(alert_plans.c.run == run).values(due=now))


def request_all(connection: Connection, now: float) -> None:
    """Have alerts look at every run that is still news: there are other channels or routes."""
    recent = select(runs.c.key).where(runs.c.last_seen > now - RECENT_SECONDS)
    connection.execute(update(alert_plans).where(alert_plans.c.run.in_(recent)).values(due=now))


def next_due(store: Store) -> float | None:
    """When the next run is to be looked at, in Unix seconds."""
    with store.reading() as connection:
        at: float | None = connection.scalar(select(func.min(alert_plans.c.due)))
    return at


def claim_run(connection: Connection, now: float) -> int | None:
    """A run that is to be looked at, nobody else's for as long as the transaction lasts."""
    due = select(alert_plans.c.run).where(alert_plans.c.due <= now).order_by(alert_plans.c.due)
    return connection.scalar(due.limit(1).with_for_update(skip_locked=True))


def set_due(connection: Connection, run: int, due: float | None) -> None:
    """When to look at a run again; None waits for something to happen."""
    connection.execute(update(alert_plans).where(alert_plans.c.run == run).values(due=due))


def _digest(findings: Iterable[Finding]) -> str:
    said = [
        (f.rule, f.optimizer, f.severity, f.lifecycle == "resolved", f.inhibited_by, f.since_step)
        for f in findings
    ]
    return sha256(repr(sorted(said, key=repr)).encode()).hexdigest() if said else ""
