"""Alerts: what is to be looked at, what was said, what is on its way, and where to.

Written on 2026-11-21 17:05:00.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Move the tables forward."""
    op.create_table(
        "attention",
        sa.Column("run", Key, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("look_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_attention_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_attention")),
    )
    op.create_index("ix_attention_look_at", "attention", ["look_at"])
    op.create_table(
        "notices",
        sa.Column("run", Key, nullable=False),
        sa.Column("channel", sa.String(length=64), nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("optimizer", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_notices_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "channel", "rule", "optimizer", name=op.f("pk_notices")),
    )
    _outbox()
    op.create_table(
        "channels",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=True),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("disabled", sa.Double(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("held_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_channels")),
    )
    op.create_table(
        "routes",
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_routes")),
    )
    op.create_table(
        "keys",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_keys")),
    )


def _outbox() -> None:
    op.create_table(
        "alerts",
        sa.Column("number", Key, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("run", Key, nullable=True),
        sa.Column("channel", sa.String(length=64), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("due", sa.Double(), nullable=False),
        sa.Column("planned", sa.Double(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("claim", sa.String(length=32), nullable=True),
        sa.Column("finished", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.key"], name=op.f("fk_alerts_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_alerts")),
        sa.UniqueConstraint("id", name=op.f("uq_alerts_id")),
    )
    op.create_index("ix_alerts_due", "alerts", ["state", "due"])
    op.create_index("ix_alerts_run", "alerts", ["run", "channel"])
    op.create_table(
        "alert_attempts",
        sa.Column("alert", Key, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("fate", sa.String(length=16), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["alert"],
            ["alerts.number"],
            name=op.f("fk_alert_attempts_alert"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("alert", "attempt", name=op.f("pk_alert_attempts")),
    )


def downgrade() -> None:
    """Move the tables back."""
    for table in ("keys", "routes", "channels", "alert_attempts", "alerts", "notices", "attention"):
        op.drop_table(table)
