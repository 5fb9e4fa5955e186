"""Numbers of runs and findings, for the metrics of the service."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select
from sqlalchemy.sql import ColumnElement

from gradledger_monitor.store.database import Store
from gradledger_monitor.store.tables import findings, runs

Counts = dict[tuple[str, ...], int]


@dataclass(frozen=True)
class Totals:
    """Runs by verdict, findings by rule, severity and lifecycle, and runs that are pending."""

    runs: Counts
    findings: Counts
    pending: int


def count(store: Store) -> Totals:
    """Count everything in one transaction."""
    pending = select(func.count()).where(runs.c.revision > runs.c.evaluated_revision)
    with store.reading() as connection:
        return Totals(
            runs=_by(connection, runs.c.verdict),
            findings=_by(connection, findings.c.rule, findings.c.severity, findings.c.lifecycle),
            pending=connection.scalar(pending) or 0,
        )


def _by(connection: Connection, *columns: ColumnElement[str]) -> Counts:
    query = select(*columns, func.count()).group_by(*columns)
    return {tuple(values): number for *values, number in connection.execute(query)}
