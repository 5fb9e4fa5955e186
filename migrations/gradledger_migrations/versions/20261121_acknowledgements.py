"""What people said of findings.

Written on 2026-11-21 15:20:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "acknowledgements",
        sa.Column("run", Key, nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("seen_step", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("by", sa.String(length=256), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_acknowledgements_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "rule", "optimizer", name=op.f("pk_acknowledgements")),
    )
    # findings of before this version count as never interrupted, until their run is judged again
    op.add_column(
        "findings", sa.Column("since_step", sa.BigInteger(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    """Move the tables back."""
    op.drop_column("findings", "since_step")
    op.drop_table("acknowledgements")
