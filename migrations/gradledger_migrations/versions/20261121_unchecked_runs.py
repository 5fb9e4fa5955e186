"""On Postgres, a row of ``steps`` or ``facts`` is no longer checked to belong to a run.

The check was half the time of storing a batch: it asks for the run once for each row, where all
rows of a transaction are of one run that it has locked. What it did besides, a trigger does: with a
run, its steps go. SQLite keeps the check, which costs little there.

Written on 2026-11-21 20:10:00.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLES = ("steps", "facts")
FORGET = """
CREATE FUNCTION gradledger_forget_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM steps WHERE run = OLD.key;
    DELETE FROM facts WHERE run = OLD.key;
    RETURN OLD;
END $$
"""
WITH_ITS_RUN = """
CREATE TRIGGER gradledger_forget_run BEFORE DELETE ON runs
FOR EACH ROW EXECUTE FUNCTION gradledger_forget_run()
"""


def upgrade() -> None:
    """Move the tables forward."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table in TABLES:
        op.drop_constraint(f"fk_{table}_run", table, type_="foreignkey")
    op.execute(FORGET)
    op.execute(WITH_ITS_RUN)


def downgrade() -> None:
    """Move the tables back."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute("DROP TRIGGER gradledger_forget_run ON runs")
    op.execute("DROP FUNCTION gradledger_forget_run()")
    for table in TABLES:
        key = f"fk_{table}_run"
        op.create_foreign_key(key, table, "runs", ["run"], ["key"], ondelete="CASCADE")
