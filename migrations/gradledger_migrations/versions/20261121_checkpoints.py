"""Checkpoints that scripts said they saved.

Written on 2026-11-21 17:08:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "checkpoints",
        sa.Column("run", Key, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_checkpoints_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "step", "path", name=op.f("pk_checkpoints")),
    )


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("checkpoints")
