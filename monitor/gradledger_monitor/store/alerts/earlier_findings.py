"""Findings that were open when a channel was added: skipped on it until a person sends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, literal, or_, select

from gradledger_monitor.model.findings import Severity
from gradledger_monitor.store.alerts import due
from gradledger_monitor.store.alerts.tables import notifications
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import acknowledgements, findings, runs

SKIPPED = "skipped"


@dataclass(frozen=True)
class SkippedFinding:
    """A finding that is still open and was not sent to a channel."""

    channel: str
    run: str
    name: str
    project: str
    rule: str
    severity: Severity


def skip_open(connection: Connection, channel: str, now: float) -> None:
    """Store of each open finding that it is not sent to a new channel."""
    f, n = findings.c, notifications.c
    values = {
        n.run: f.run,
        n.channel: literal(channel),
        n.rule: f.rule,
        n.optimizer: f.optimizer,
        n.state: literal(SKIPPED),
        n.severity: f.severity,
        n.last_step: f.last_step,
        n.at: literal(now),
    }
    notified = select(n.run).where(
        n.run == f.run, n.channel == channel, n.rule == f.rule, n.optimizer == f.optimizer
    )
    open_ = select(*values.values()).where(f.lifecycle != "resolved", ~notified.exists())
    connection.execute(insert(notifications).from_select(list(values), open_))


def skipped(store: Store, now: float) -> Sequence[SkippedFinding]:
    """The skipped findings of recent runs that are still open, and that nobody acknowledged."""
    f, n, r, a = findings.c, notifications.c, runs.c, acknowledgements.c
    same = and_(f.run == n.run, f.rule == n.rule, f.optimizer == n.optimizer)
    current = and_(
        a.run == f.run,
        a.rule == f.rule,
        a.optimizer == f.optimizer,
        a.last_step >= f.since_step,
        or_(a.until.is_(None), a.until > now),
    )
    query = (
        select(n.channel, r.id.label("run"), r.name, r.project, f.rule, f.severity)
        .join(findings, same)
        .join(runs, r.key == n.run)
        .outerjoin(acknowledgements, current)
        .where(n.state == SKIPPED, due.is_recent(now), a.run.is_(None))
        .where(f.lifecycle != "resolved", f.inhibited_by.is_(None))
        .distinct()
    )
    with store.reading() as connection:
        return [SkippedFinding(**row._mapping) for row in connection.execute(query)]


def unskip(store: Store, channel: str, now: float) -> None:
    """Let the findings of recent runs be sent to a channel as new ones."""
    with store.writing() as connection:
        connection.execute(delete(notifications).where(_of_recent_runs(channel, now)))
        due.request_all(connection, now)


def _of_recent_runs(channel: str, now: float) -> ColumnElement[bool]:
    n = notifications.c
    recent = select(runs.c.key).where(due.is_recent(now))
    return and_(n.channel == channel, n.state == SKIPPED, n.run.in_(recent))
