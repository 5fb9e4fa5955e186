"""What people choose in the service.

Written on 2026-11-21 22:30:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "chosen",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_chosen")),
    )


def downgrade() -> None:
    """Move the tables back."""
    op.drop_table("chosen")
