"""Turns findings into messages in the outbox: per run, in one transaction, in one process.

The plan depends only on the database and the time (``planner``). The notifications are stored in
the transaction that stores the messages, so that no message is lost or sent twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from gradledger_monitor.alerts import payload, planner
from gradledger_monitor.alerts.configuration import Timing
from gradledger_monitor.alerts.links import Links
from gradledger_monitor.alerts.payload import PageUrls, RunSummary
from gradledger_monitor.alerts.planner import AlertKey, Notification, Plan, RunContext
from gradledger_monitor.alerts.roster import Roster
from gradledger_monitor.model.code.revision import revision_of
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.store.alerts import due, outbox
from gradledger_monitor.store.alerts.tables import notifications
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import attempts, queries
from gradledger_monitor.store.tables import runs

log = logging.getLogger(__name__)

FINISHED_AFTER = 24 * 3600.0  # seconds without a record, after which no more steps are expected
RETRY_SECONDS = 60.0  # until a run is planned again after a failure


@dataclass(frozen=True)
class Composer:
    """What messages are composed with."""

    base: str
    links: Links
    timing: Timing
    roster: Callable[[], Roster]


def enqueue_due(store: Store, composer: Composer, now: float) -> int:
    """Put all messages that are due into the outbox; return their number."""
    count = 0
    while (at := due.next_due(store)) is not None and at <= now:
        count += _enqueue_next(store, composer, now)
    return count


def _enqueue_next(store: Store, composer: Composer, now: float) -> int:
    roster = composer.roster()
    run = None
    try:
        with store.writing() as connection:
            run = due.claim_run(connection, now)
            return 0 if run is None else _enqueue(connection, run, roster, composer, now)
    except Exception:  # a run that cannot be planned must not stop the alerts of all others
        if run is None:
            raise
        log.exception("planning alerts of run %s failed; retry in %g s", run, RETRY_SECONDS)
        with store.writing() as connection:
            due.set_due(connection, run, now + RETRY_SECONDS)
        return 0


def _enqueue(
    connection: Connection, run: int, roster: Roster, composer: Composer, now: float
) -> int:
    row = connection.execute(select(runs).where(runs.c.key == run)).one()
    findings = queries.current_findings(connection, run, now)
    before = _notifications(connection, run)
    finished = row.ended or row.last_seen < now - FINISHED_AFTER
    finished = finished or attempts.has_later(connection, row.id)
    context = RunContext(row.name, row.project, finished)
    plan = planner.plan(context, findings, before, roster.routing, composer.timing, now)
    _put_messages(connection, row, plan, composer, now)
    _store_notifications(connection, run, before, plan)
    due.set_due(connection, run, plan.next_plan_at)
    return len(plan.messages)


def _put_messages(
    connection: Connection, row: Row[Any], plan: Plan, composer: Composer, now: float
) -> None:
    summary = RunSummary(
        id=row.id,
        name=row.name,
        project=row.project,
        verdict=row.verdict,
        steps=row.steps,
        ranks=row.world_size,
        revision=revision_of(row.environment),
    )
    urls = PageUrls(composer.base, lambda rule: composer.links.create(row.id, rule))
    kinds = {rule: definition.kind for rule, definition in rules_by_id().items()}
    for message in plan.messages:
        document = payload.alert_document(summary, message.items, kinds, urls, now)
        outbox.enqueue(connection, row.key, message.channel, document, now)


def _notifications(connection: Connection, run: int) -> dict[AlertKey, Notification]:
    rows = connection.execute(select(notifications).where(notifications.c.run == run))
    return {
        AlertKey(row.channel, row.rule, row.optimizer): Notification(
            row.state, row.severity, row.last_step, row.at
        )
        for row in rows
    }


def _store_notifications(
    connection: Connection, run: int, before: Mapping[AlertKey, Notification], plan: Plan
) -> None:
    changed = {k: n for k, n in plan.notifications.items() if before.get(k) != n}
    for key in changed.keys() & before.keys():
        matching = [notifications.c[name] == value for name, value in key._asdict().items()]
        connection.execute(delete(notifications).where(notifications.c.run == run, *matching))
    rows = [
        {"run": run, **key._asdict(), **asdict(notification)}
        for key, notification in changed.items()
        if notification is not None
    ]
    if rows:
        connection.execute(insert(notifications), rows)
