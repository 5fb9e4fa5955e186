"""Comments on the findings of a rule, and to whom they are assigned.

Written on 2026-11-27 16:10:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "comments",
        sa.Column("key", KEY, nullable=False),
        sa.Column("rule", sa.String(128), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("by", sa.String(256)),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("assignee", sa.String(256)),
        sa.PrimaryKeyConstraint("key", name="pk_comments"),
    )
    op.create_index("ix_comments_rule", "comments", ["rule"])


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("comments")
