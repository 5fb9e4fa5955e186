"""First tables.

Written on 2026-11-21 13:00:46.252558.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "runs",
        sa.Column("key", Key, nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("project", sa.String(length=256), nullable=False),
        sa.Column("started", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("optimizers", sa.LargeBinary(), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=False),
        sa.Column("environment", sa.LargeBinary(), nullable=False),
        sa.Column("contract", sa.String(length=16), nullable=True),
        sa.Column("declared_scale", sa.Double(), nullable=True),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("primary_title", sa.Text(), nullable=True),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("judged_revision", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("rewind", sa.Boolean(), nullable=False),
        sa.Column("waiting_since", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_runs")),
        sa.UniqueConstraint("id", name=op.f("uq_runs_id")),
    )
    op.create_index("ix_runs_last_seen", "runs", ["last_seen"], unique=False)

    op.create_table(
        "evals",
        sa.Column("run", Key, nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_evals_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "name", "step", "rank", name=op.f("pk_evals")),
    )
    op.create_table(
        "facts",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("loss_reported", sa.Double(), nullable=True),
        sa.Column("loss_token", sa.Double(), nullable=True),
        sa.Column("norm", sa.Double(), nullable=True),
        sa.Column("balance", sa.Double(), nullable=True),
        sa.Column("misallocation", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Double(), nullable=True),
        sa.Column("micro_batches", sa.Double(), nullable=True),
        sa.Column("lr", sa.Double(), nullable=True),
        sa.Column("scale", sa.Double(), nullable=True),
        sa.Column("collectives", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_facts_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "optimizer", "step", name=op.f("pk_facts")),
    )
    op.create_table(
        "findings",
        sa.Column("run", Key, nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("fix", sa.Text(), nullable=False),
        sa.Column("evidence", sa.LargeBinary(), nullable=False),
        sa.Column("lifecycle", sa.String(length=16), nullable=False),
        sa.Column("inhibited_by", sa.String(length=128), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_findings_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "rule", "optimizer", name=op.f("pk_findings")),
    )
    op.create_table(
        "judgements",
        sa.Column("run", Key, nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("tree", sa.LargeBinary(), nullable=False),
        sa.Column("coverage", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_judgements_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_judgements")),
    )
    op.create_table(
        "progress",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_progress_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "optimizer", name=op.f("pk_progress")),
    )
    op.create_table(
        "ranks",
        sa.Column("run", Key, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_ranks_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "rank", name=op.f("pk_ranks")),
    )
    op.create_table(
        "steps",
        sa.Column("run", Key, nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("received", sa.Double(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_steps_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "optimizer", "step", "rank", name=op.f("pk_steps")),
    )


def downgrade() -> None:
    """Move them back."""
    op.drop_table("steps")
    op.drop_table("ranks")
    op.drop_table("progress")
    op.drop_table("judgements")
    op.drop_table("findings")
    op.drop_table("facts")
    op.drop_table("evals")
    op.drop_index("ix_runs_last_seen", "runs")
    op.drop_table("runs")
