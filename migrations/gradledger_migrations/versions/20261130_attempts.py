"""Which runs are attempts of one job.

Written on 2026-11-30 03:15:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Move the tables forward."""
    op.add_column("runs", sa.Column("job", sa.String(32)))
    op.create_index("ix_runs_job", "runs", ["job"])


def downgrade() -> None:
    """Move the tables back."""
    op.drop_index("ix_runs_job", "runs")
    op.drop_column("runs", "job")
