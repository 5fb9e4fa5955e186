"""On Postgres, the two tables that grow with every step are parted by run.

Each part has a smaller index and is vacuumed by itself, beside the others. By run and not by time:
whatever asks, removes or judges does so within one run. SQLite knows no parts.

Written on 2026-11-21 19:45:00.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLES = ("steps", "facts")
PARTS = 16


def upgrade() -> None:
    """Move the tables forward."""
    if op.get_bind().dialect.name == "postgresql":
        for table in TABLES:
            _rebuild(table, "PARTITION BY HASH (run)", PARTS)


def downgrade() -> None:
    """Move the tables back."""
    if op.get_bind().dialect.name == "postgresql":
        for table in TABLES:
            _rebuild(table, "", 0)


def _rebuild(table: str, how: str, parts: int) -> None:
    """Make the table anew with the same columns and keys, and move its rows."""
    op.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    for kind in ("pk", "fk"):
        name = f"{kind}_{table}" + ("_run" if kind == "fk" else "")
        op.execute(f"ALTER TABLE {table}_before RENAME CONSTRAINT {name} TO {name}_before")
    keys = "run, optimizer, step" + (", rank" if table == "steps" else "")
    op.execute(
        f"CREATE TABLE {table} (LIKE {table}_before INCLUDING DEFAULTS,"
        f" CONSTRAINT pk_{table} PRIMARY KEY ({keys}),"
        f" CONSTRAINT fk_{table}_run FOREIGN KEY (run) REFERENCES runs (key) ON DELETE CASCADE"
        f") {how}"
    )
    for part in range(parts):
        op.execute(
            f"CREATE TABLE {table}_{part:02d} PARTITION OF {table}"
            f" FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
        )
    op.execute(f"INSERT INTO {table} SELECT * FROM {table}_before")  # nosec B608
    op.execute(f"DROP TABLE {table}_before")
