"""Where in the script the calls are that findings point at: sent with the first steps of a run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, select

from gradledger_monitor.ingest import schema
from gradledger_monitor.model.code.locations import CodeLocation, LocationsByOptimizer
from gradledger_monitor.store import dialects
from gradledger_monitor.store.tables import code_locations

MOST = 256  # of one optimizer, in all records


def write(
    connection: Connection, run: int, rank: int, records: Iterable[schema.StepRecord]
) -> None:
    """Store the locations in new records; several ranks send the same ones."""
    rows = [
        {
            "run": run,
            "optimizer": record.optimizer,
            "role": location.role,
            "file": dialects.without_nul(location.file),
            "line": location.line,
            "step": record.step,
            "rank": rank,
            "position": position,
            "location": msgspec.to_builtins(location),
        }
        for record in records
        for position, location in enumerate(record.code)
    ]
    if rows:
        new = dialects.insert(connection, code_locations).on_conflict_do_nothing()
        connection.execute(new, rows)


def of_run(connection: Connection, run: int) -> LocationsByOptimizer:
    """The locations of each optimizer, in the order in which its calls were first seen."""
    c = code_locations.c
    order = (c.optimizer, c.step, c.rank, c.position)
    query = select(c.optimizer, c.location).where(c.run == run).order_by(*order)
    located: LocationsByOptimizer = {}
    for optimizer, location in connection.execute(query):
        of_optimizer = located.setdefault(optimizer, [])
        if len(of_optimizer) < MOST:
            of_optimizer.append(msgspec.convert(location, CodeLocation))
    return located
