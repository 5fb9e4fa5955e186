"""From findings to messages in the outbox: one run, in one transaction, by one process at a time.

What is said depends on the database and the time alone (``planning``); that it was said is written
together with the message, so that nothing is told twice and nothing is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select

from gradledger_monitor.alerts import payload, planner
from gradledger_monitor.alerts.configuration import Timing
from gradledger_monitor.alerts.links import Links
from gradledger_monitor.alerts.payload import PageUrls, RunSummary
from gradledger_monitor.alerts.planner import Notice, Place, Plan, Subject
from gradledger_monitor.alerts.roster import Roster
from gradledger_monitor.alerts.routing import Routing
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.store.alerts import due, outbox
from gradledger_monitor.store.alerts.tables import notices
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.tables import runs

log = logging.getLogger(__name__)

OVER_AFTER = 24 * 3600.0  # seconds after which no more steps are expected of a silent run
STEP_ASIDE = 60.0  # seconds that a run is left alone of which nothing could be said


@dataclass(frozen=True)
class Composer:
    """All that a message needs to be said besides the run."""

    base: str
    links: Links
    timing: Timing
    roster: Callable[[], Roster]


def enqueue_due(store: Store, voice: Composer, now: float) -> int:
    """Put into the outbox what is to be said by now; how many messages that were."""
    sent = 0
    while (at := due.next_due(store)) is not None and at <= now:
        sent += _speak_of_one(store, voice, now)
    return sent


def _speak_of_one(store: Store, voice: Composer, now: float) -> int:
    roster = voice.roster()
    run = None
    try:
        with store.writing() as connection:
            run = due.claim_run(connection, now)
            return 0 if run is None else _say(connection, run, roster, voice, now)
    except Exception:  # one run of which nothing can be said must not silence all others
        if run is None:
            raise
        log.exception("nothing could be said of run %s; left alone for %s s", run, STEP_ASIDE)
        with store.writing() as connection:
            due.set_due(connection, run, now + STEP_ASIDE)
        return 0


def _say(connection: Connection, run: int, roster: Roster, voice: Composer, now: float) -> int:
    row = connection.execute(select(runs).where(runs.c.key == run)).one()
    findings = queries.current_findings(connection, run, now)
    before = _notices(connection, run)
    routing = Routing(roster.usable, roster.routes)
    over = row.ended or row.last_seen < now - OVER_AFTER
    subject = Subject(row.name, row.project, over)
    plan = planner.plan(subject, findings, before, routing, voice.timing, now)
    about = RunSummary(row.id, row.name, row.project, row.verdict, row.steps, row.world_size)
    places = PageUrls(voice.base, lambda rule: voice.links.to(row.id, rule))
    kinds = {rule: signature.kind for rule, signature in rules_by_id().items()}
    for message in plan.messages:
        document = payload.alert(about, message.items, kinds, places, now)
        outbox.enqueue(connection, run, message.channel, document, now)
    _keep(connection, run, before, plan)
    due.set_due(connection, run, plan.look_at)
    return len(plan.messages)


def _notices(connection: Connection, run: int) -> dict[Place, Notice]:
    rows = connection.execute(select(notices).where(notices.c.run == run))
    return {
        Place(row.channel, row.rule, row.optimizer): Notice(
            row.state, row.severity, row.last_step, row.at
        )
        for row in rows
    }


def _keep(connection: Connection, run: int, before: Mapping[Place, Notice], plan: Plan) -> None:
    changed = {p: n for p, n in plan.notices.items() if before.get(p) != n}
    for place in changed.keys() & before.keys():
        here = [notices.c[name] == value for name, value in place._asdict().items()]
        connection.execute(delete(notices).where(notices.c.run == run, *here))
    rows = [
        {"run": run, **place._asdict(), **asdict(notice)}
        for place, notice in changed.items()
        if notice is not None
    ]
    if rows:
        connection.execute(insert(notices), rows)
