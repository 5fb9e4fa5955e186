"""Figures that are charted beside the ledger, and stretches of steps, from which curves are drawn.

Written on 2026-11-21 16:40:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

OLD = (
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
)
NEW = (
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
PARTS = {"low": "min", "mean": "avg", "high": "max"}
FILL = """
INSERT INTO stretches (run, optimizer, stretch, first, last, time, steps, tokens_sum, {names})
SELECT run, optimizer, step / 64, min(step), max(step), max(time), count(*),
       coalesce(sum(tokens), 0), {values}
FROM facts GROUP BY run, optimizer, step / 64
"""


def upgrade() -> None:
    """Move the tables forward."""
    for figure in NEW:
        op.add_column("facts", sa.Column(figure, sa.Double(), nullable=True))
    op.create_table(
        "stretches",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("stretch", sa.BigInteger(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("tokens_sum", sa.Double(), nullable=False),
        *(sa.Column(f"{f}_{p}", sa.Double(), nullable=True) for f in (*OLD, *NEW) for p in PARTS),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_stretches_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "optimizer", "stretch", name=op.f("pk_stretches")),
    )
    names = ", ".join(f"{f}_{p}" for f in OLD for p in PARTS)
    values = ", ".join(f"{call}({f})" for f in OLD for call in PARTS.values())
    op.execute(FILL.format(names=names, values=values))


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("stretches")
    for figure in NEW:
        op.drop_column("facts", figure)
