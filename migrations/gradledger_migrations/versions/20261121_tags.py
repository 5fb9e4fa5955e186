"""Words by which people sort their runs.

Written on 2026-11-21 16:55:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "tags",
        sa.Column("run", Key, nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_tags_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "tag", name=op.f("pk_tags")),
    )
    op.create_index(op.f("ix_tags_tag"), "tags", ["tag"])


def downgrade() -> None:
    """Move the tables back."""
    op.drop_index(op.f("ix_tags_tag"), table_name="tags")
    op.drop_table("tags")
