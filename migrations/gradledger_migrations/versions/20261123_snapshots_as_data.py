"""Evaluation state is versioned data: a version for each snapshot, and what a run says about it.

Snapshots written before were pickles. They are removed unread: whatever a pickle names is run when
it is loaded. A run is evaluated again from its records; of a run whose first records are pruned,
the findings and the verdict are kept, and marked as those of an earlier version.

Written on 2026-11-23 03:20:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NOTE = (
    "Evaluated by an earlier version: records of the first steps are pruned, so the findings and "
    "the verdict are kept and cannot be evaluated again."
)


def upgrade() -> None:
    """Move the tables forward."""
    op.add_column("runs", sa.Column("evaluator", sa.String(length=64), nullable=True))
    op.add_column(
        "runs",
        sa.Column("earlier_version", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column("runs", sa.Column("evaluation_note", sa.Text(), nullable=True))
    _replace_snapshots(sa.Column("evaluator", sa.String(length=64), nullable=False))
    pruned = "SELECT run FROM progress WHERE given_up > 0"
    mark = "UPDATE runs SET earlier_version = :marked, evaluation_note = :note"
    op.execute(
        sa.text(f"{mark} WHERE key IN ({pruned})").bindparams(
            sa.bindparam("marked", True, sa.Boolean()), note=NOTE
        )
    )


def downgrade() -> None:
    """Move the tables back."""
    _replace_snapshots()
    op.drop_column("runs", "evaluation_note")
    op.drop_column("runs", "earlier_version")
    op.drop_column("runs", "evaluator")


def _replace_snapshots(*versions: sa.Column[str]) -> None:
    """An empty table: what one version wrote there is of no use to the other."""
    op.drop_table("snapshots")
    op.create_table(
        "snapshots",
        sa.Column("run", Key, nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("taken", sa.Double(), nullable=False),
        sa.Column("reached", sa.LargeBinary(), nullable=False),
        *versions,
        sa.Column("stamp", sa.String(length=64), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_snapshots_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "level", name=op.f("pk_snapshots")),
    )
