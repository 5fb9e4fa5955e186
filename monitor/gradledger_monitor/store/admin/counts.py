"""How many of what: read when an operator's monitoring asks."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select
from sqlalchemy.sql import ColumnElement

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import findings, runs

Counts = dict[tuple[str, ...], int]


@dataclass(frozen=True)
class Totals:
    """Runs by verdict, findings by rule, severity and lifecycle, runs that wait for the judge."""

    runs: Counts
    findings: Counts
    pending: int


def count(store: Store) -> Totals:
    """Count, all at one moment."""
    waits = select(func.count()).where(runs.c.revision > runs.c.evaluated_revision)
    with store.reading() as connection:
        return Totals(
            _by(connection, runs.c.verdict),
            _by(connection, findings.c.rule, findings.c.severity, findings.c.lifecycle),
            connection.scalar(waits) or 0,
        )


def _by(connection: Connection, *columns: ColumnElement[str]) -> Counts:
    query = select(*columns, func.count()).group_by(*columns)
    return {tuple(said): number for *said, number in connection.execute(query)}
