"""Tables and columns in standard terms: buckets, heartbeats, overrides, notifications.

SQLite and Postgres rename both in place, whatever their size. SQLite keeps the names of the primary
and foreign keys, which no statement refers to.

Written on 2026-11-23 06:50:00.
"""

from __future__ import annotations

from collections.abc import Mapping

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

TABLES = {
    "attention": "alert_plans",
    "chosen": "overrides",
    "judgements": "evaluations",
    "notices": "notifications",
    "silences": "inactivity",
    "stretches": "buckets",
}
WITHOUT_RUN = ("chosen", "overrides")
COLUMNS = {  # by the new name of the table
    "acknowledgements": ("seen_step", "last_step"),
    "alert_attempts": ("fate", "outcome"),
    "alert_plans": ("look_at", "due"),
    "buckets": ("stretch", "bucket"),
    "chunks": ("held", "record_count"),
    "progress": ("given_up", "pruned"),
    "ranks": ("beat", "heartbeat"),
    "runs": ("judged_revision", "evaluated_revision"),
}
STATES = {"told": "sent", "hushed": "silenced"}  # of notifications


def upgrade() -> None:
    """Move the tables forward."""
    op.drop_index("ix_attention_look_at", "attention")
    for old, new in TABLES.items():
        _rename_table(old, new)
    for table, (old, new) in COLUMNS.items():
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    op.create_index("ix_alert_plans_due", "alert_plans", ["due"])
    _rename_states(STATES)


def downgrade() -> None:
    """Move the tables back."""
    _rename_states({new: old for old, new in STATES.items()})
    op.drop_index("ix_alert_plans_due", "alert_plans")
    for table, (old, new) in COLUMNS.items():
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
    for old, new in TABLES.items():
        _rename_table(new, old)
    op.create_index("ix_attention_look_at", "attention", ["look_at"])


def _rename_table(old: str, new: str) -> None:
    op.rename_table(old, new)
    if op.get_bind().dialect.name != "postgresql":
        return
    _rename_constraint(new, f"pk_{old}", f"pk_{new}")
    if old not in WITHOUT_RUN:
        _rename_constraint(new, f"fk_{old}_run", f"fk_{new}_run")


def _rename_constraint(table: str, old: str, new: str) -> None:
    op.execute(f"ALTER TABLE {table} RENAME CONSTRAINT {old} TO {new}")


def _rename_states(states: Mapping[str, str]) -> None:
    for old, new in states.items():
        op.execute(f"UPDATE notifications SET state = '{new}' WHERE state = '{old}'")  # nosec B608
