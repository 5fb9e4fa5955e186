"""Gradients, parameters and updates by layer.

Written on 2026-11-23 23:10:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "layers",
        sa.Column("run", KEY, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("sharded", sa.Boolean(), nullable=False),
        sa.Column("layers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_layers_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "optimizer", "step", "rank", name="pk_layers"),
    )


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("layers")
