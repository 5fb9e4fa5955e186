"""Acknowledgements of findings: stored, removed, and listed over all runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, and_, delete, insert, or_, select

from gradledger_monitor.common import clock
from gradledger_monitor.model.findings import Acknowledgement
from gradledger_monitor.store.alerts import due
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import acknowledgements, findings, runs


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


@dataclass(frozen=True)
class Silence:
    """A finding of a run that is ongoing and acknowledged or, with ``until``, snoozed."""

    run: str
    name: str
    project: str
    rule: str
    optimizer: int
    severity: str
    title: str
    note: str
    by: str | None
    at: float
    until: float | None


def current(store: Store, now: float) -> list[Silence]:
    """The acknowledgements that keep ongoing findings from being sent, the newest first."""
    f, a, r = findings.c, acknowledgements.c, runs.c
    of_finding = and_(f.run == a.run, f.rule == a.rule, f.optimizer == a.optimizer)
    query = (
        select(
            r.id.label("run"),
            r.name,
            r.project,
            f.rule,
            f.optimizer,
            f.severity,
            f.title,
            a.note,
            a.by,
            a.at,
            a.until,
        )
        .join_from(acknowledgements, findings, of_finding)
        .join(runs, r.key == a.run)
        .where(a.last_step >= f.since_step, f.lifecycle != "resolved")
        .where(or_(a.until.is_(None), a.until > now))
        .order_by(a.at.desc(), r.id, f.rule, f.optimizer.desc())
    )
    with store.reading() as connection:
        rows = connection.execute(query).all()
    by_finding = {(row.run, row.rule): row for row in rows}  # of several optimizers, the first
    return [Silence(**row._mapping) for row in by_finding.values()]


def _of(key: int, rule: str) -> ColumnElement[bool]:
    return and_(acknowledgements.c.run == key, acknowledgements.c.rule == rule)
