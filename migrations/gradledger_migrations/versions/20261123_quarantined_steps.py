"""Why a step could not be evaluated; and in how many steps of a bucket each figure was measured.

The mean of several buckets weights each of them by that number. In an older bucket it is counted
from the rows of its steps; where retention has removed them it stays NULL, and such a bucket is
weighted by all of its steps, as before. The bucket's own mean was always right.

Written on 2026-11-23 03:10:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

FIGURES = (
    "loss_reported",
    "loss_token",
    "norm",
    "balance",
    "misallocation",
    "tokens",
    "micro_batches",
    "lr",
    "scale",
    "collectives",
    "skipped",
    "samples",
    "clip_norm",
    "clip_limit",
    "clipped",
    "smallest_norm",
    "largest_norm",
    "noise_trace",
    "noise_signal",
)
COUNT = """
UPDATE stretches SET {set}
FROM (
    SELECT run, optimizer, step / 64 AS stretch, count(*) AS steps, {counts}
    FROM facts GROUP BY run, optimizer, step / 64
) AS counted
WHERE stretches.run = counted.run AND stretches.optimizer = counted.optimizer
    AND stretches.stretch = counted.stretch AND stretches.steps = counted.steps
"""


def upgrade() -> None:
    """Move the tables forward."""
    op.add_column("facts", sa.Column("failure", sa.Text(), nullable=True))
    there = sa.text("failure IS NOT NULL")
    op.create_index(
        "ix_facts_failure",
        "facts",
        ["run", "optimizer", "step"],
        sqlite_where=there,
        postgresql_where=there,
    )
    for figure in FIGURES:
        op.add_column("stretches", sa.Column(f"{figure}_count", sa.BigInteger(), nullable=True))
    new = ", ".join(f"{f}_count = counted.{f}_count" for f in FIGURES)
    counts = ", ".join(f"count({f}) AS {f}_count" for f in FIGURES)
    op.execute(COUNT.format(set=new, counts=counts))


def downgrade() -> None:
    """Move them back."""
    for figure in FIGURES:
        op.drop_column("stretches", f"{figure}_count")
    op.drop_index("ix_facts_failure", "facts")
    op.drop_column("facts", "failure")
