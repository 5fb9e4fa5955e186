"""Calls in the script's code that findings point at.

Written on 2026-11-23 19:30:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "code_locations",
        sa.Column("run", KEY, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("file", sa.String(1024), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("location", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name="fk_code_locations_run", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "run", "optimizer", "role", "file", "line", name="pk_code_locations"
        ),
    )


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("code_locations")
