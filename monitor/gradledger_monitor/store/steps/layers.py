"""Layers at a few steps: the heat map of a run, which outlives the records of its steps."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, delete, select

from gradledger_monitor.ingest import schema
from gradledger_monitor.model.layers.combined import LayersByRank
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.tables import layers

MOST_STEPS = 200  # of one optimizer and rank; of more, every second is removed
MOST_RANKS = 64  # whose layers the heat map reads

StepLayers = dict[int, LayersByRank]


def write(
    connection: Connection, run: int, rank: int, records: Iterable[schema.StepRecord]
) -> None:
    """Store the layers of new records."""
    rows = [
        {
            "run": run,
            "optimizer": record.optimizer,
            "step": record.step,
            "rank": rank,
            "sharded": record.sharded,
            "layers": msgspec.to_builtins(record.layers),
        }
        for record in records
        if record.layers is not None and not record.skipped
    ]
    if rows:
        connection.execute(dialects.insert(connection, layers).on_conflict_do_nothing(), rows)
        for optimizer in {row["optimizer"] for row in rows}:
            _thin(connection, run, optimizer, rank)


def _thin(connection: Connection, run: int, optimizer: int, rank: int) -> None:
    """Remove every second step, except the first and the last ones, if there are too many."""
    c = layers.c
    of_rank = (c.run == run, c.optimizer == optimizer, c.rank == rank)
    steps = list(connection.scalars(select(c.step).where(*of_rank).order_by(c.step)))
    while len(steps) > MOST_STEPS:
        removed = steps[3:-1:2]
        connection.execute(delete(layers).where(*of_rank, c.step.in_(removed)))
        steps = [step for step in steps if step not in set(removed)]


def of_run(store: Store, run: str, optimizer: int) -> tuple[StepLayers, bool]:
    """The layers of each rank, by step; and whether they are shards. Raises ``UnknownRun``."""
    c = layers.c
    with store.reading() as connection:
        key = require_run(connection, run).key
        query = select(c.step, c.rank, c.sharded, c.layers).where(
            c.run == key, c.optimizer == optimizer, c.rank < MOST_RANKS
        )
        rows = connection.execute(query.order_by(c.step, c.rank)).all()
    by_step: dict[int, dict[int, schema.Layers]] = {}
    for row in rows:
        by_step.setdefault(row.step, {})[row.rank] = msgspec.convert(row.layers, schema.Layers)
    return {**by_step}, any(row.sharded for row in rows)
