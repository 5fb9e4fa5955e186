"""Notes on runs.

Written on 2026-11-28 12:45:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "notes",
        sa.Column("run", KEY, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("by", sa.String(256)),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_notes_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", name="pk_notes"),
    )


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("notes")
