"""Step records lie in chunks, what one rank sent of an optimizer at once, and not in a row each.

A row cost more than its record: to make, to index, to keep. A chunk is compressed as a whole, so
that what records have in common is said once. Records that came together, as their time of arrival
tells, are put together; the order of steps is kept, and no chunk reaches into another.

Written on 2026-11-21 23:20:00.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from alembic import op

# how records are packed never changes, so that a migration may ask for it
from gradledger_monitor.store.packing import (
    pack_record,
    pack_records,
    unpack_record,
    unpack_records,
)

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PARTS = 16
LONGEST = 512  # records in a chunk
AT_ONCE = 8_192  # records in memory, of all ranks
WITH_A_RUN = """
CREATE OR REPLACE FUNCTION gradledger_forget_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {table} WHERE run = OLD.key;
    DELETE FROM facts WHERE run = OLD.key;
    RETURN OLD;
END $$
"""
OF_STEPS = ("run", "optimizer", "step", "rank", "received", "record")
OF_CHUNKS = ("run", "optimizer", "rank", "last", "first", "held", "received", "records")
steps = sa.table("steps", *map(sa.column, OF_STEPS))
chunks = sa.table("chunks", *map(sa.column, OF_CHUNKS))


def upgrade() -> None:
    """Move the tables forward."""
    _create(
        "chunks",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        sa.Column("received", sa.Double(), nullable=False),
        sa.Column("records", sa.LargeBinary(), nullable=False),
        keys=("run", "optimizer", "rank", "last"),
    )
    if op.get_bind().dialect.name == "postgresql":  # what is packed is not compressed again
        op.execute("ALTER TABLE chunks ALTER COLUMN records SET STORAGE EXTERNAL")
    order = (steps.c.run, steps.c.optimizer, steps.c.step, steps.c.rank)
    for rows in _read(sa.select(steps).order_by(*order), AT_ONCE):
        op.get_bind().execute(sa.insert(chunks), list(_chunks(rows)))
    op.create_index("ix_chunks_first", "chunks", ["run", "optimizer", "first"])
    op.drop_table("steps")


def downgrade() -> None:
    """Move the tables back."""
    _create(
        "steps",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("received", sa.Double(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        keys=("run", "optimizer", "step", "rank"),
    )
    for found in _read(sa.select(chunks), AT_ONCE // LONGEST):
        op.get_bind().execute(sa.insert(steps), [row for one in found for row in _steps(one)])
    op.drop_table("chunks")


def _create(name: str, *columns: sa.Column[Any], keys: Sequence[str]) -> None:
    """A table that holds many rows of a run; on Postgres parted by run, and emptied with it."""
    primary = sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}")
    if op.get_bind().dialect.name != "postgresql":
        run = sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=f"fk_{name}_run", ondelete="CASCADE"
        )
        op.create_table(name, *columns, run, primary)
        return
    op.create_table(name, *columns, primary, postgresql_partition_by="HASH (run)")
    for part in range(PARTS):
        op.execute(
            f"CREATE TABLE {name}_{part:02d} PARTITION OF {name}"
            f" FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {part})"
        )
    op.execute(WITH_A_RUN.format(table=name))


def _read(query: sa.Select[Any], at_once: int) -> Iterator[Sequence[sa.Row[Any]]]:
    with op.get_bind().execute(query, execution_options={"yield_per": at_once}) as found:
        yield from found.partitions()


def _chunks(rows: Sequence[sa.Row[Any]]) -> Iterator[dict[str, Any]]:
    """Of rows by step: those of one rank that came together."""
    rows = sorted(rows, key=attrgetter("run", "optimizer", "rank", "step"))
    for (run, optimizer, rank, received), group in groupby(
        rows, attrgetter("run", "optimizer", "rank", "received")
    ):
        records = [(row.step, unpack_record(row.record)) for row in group]
        for at in range(0, len(records), LONGEST):
            for some, packed in pack_records(records[at : at + LONGEST]):
                ends = some[-1][0], some[0][0], len(some)
                row = (run, optimizer, rank, *ends, received, packed)
                yield dict(zip(OF_CHUNKS, row, strict=True))


def _steps(chunk: sa.Row[Any]) -> Iterator[dict[str, Any]]:
    for step, raw in unpack_records(chunk.records).items():
        row = (chunk.run, chunk.optimizer, step, chunk.rank, chunk.received, pack_record(raw))
        yield dict(zip(OF_STEPS, row, strict=True))
