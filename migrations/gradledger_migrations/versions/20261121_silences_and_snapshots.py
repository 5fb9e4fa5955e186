"""What the judge notes and keeps: silences, its memory of a run, what was given up.

Written on 2026-11-21 16:20:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.add_column("runs", sa.Column("stall_at", sa.Double(), nullable=True))
    op.add_column("ranks", sa.Column("beat", sa.Double(), nullable=True))
    op.add_column("ranks", sa.Column("backwards", sa.BigInteger(), nullable=True))
    op.add_column(
        "progress", sa.Column("given_up", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.create_table(
        "silences",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("after", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("silent", sa.LargeBinary(), nullable=False),
        sa.Column("backwards", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_silences_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "optimizer", "after", name=op.f("pk_silences")),
    )
    op.create_table(
        "snapshots",
        sa.Column("run", Key, nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("taken", sa.Double(), nullable=False),
        sa.Column("reached", sa.LargeBinary(), nullable=False),
        sa.Column("stamp", sa.String(length=64), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_snapshots_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "level", name=op.f("pk_snapshots")),
    )


def downgrade() -> None:
    """Move them back."""
    op.drop_table("snapshots")
    op.drop_table("silences")
    op.drop_column("progress", "given_up")
    op.drop_column("ranks", "backwards")
    op.drop_column("ranks", "beat")
    op.drop_column("runs", "stall_at")
