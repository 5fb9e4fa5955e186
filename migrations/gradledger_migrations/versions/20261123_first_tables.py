"""First tables.

This migration has the id of the last of fifteen that were never released, and makes the same
tables: a database at that revision opens unchanged. ``Store.migrate`` refuses an older one.

On Postgres, the two tables that grow with every step are partitioned by run: each partition has a
smaller index and is vacuumed separately, and every query is about one run. They have no foreign key
there, because Postgres would look up the run once per row, which was half the time of storing a
batch; a trigger removes their rows with the run. SQLite has no partitions and has the foreign key.

Written on 2026-11-23 06:40:00.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = None
branch_labels = None
depends_on = None

Key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

FIGURES = (
    "loss_reported",
    "loss_token",
    "norm",
    "balance",
    "misallocation",
    "tokens",
    "micro_batches",
    "lr",
    "scale",
    "collectives",
    "skipped",
    "samples",
    "clip_norm",
    "clip_limit",
    "clipped",
    "smallest_norm",
    "largest_norm",
    "noise_trace",
    "noise_signal",
)
PARTITIONS = 16
DELETE_WITH_RUN = """
CREATE FUNCTION gradledger_forget_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM chunks WHERE run = OLD.key;
    DELETE FROM facts WHERE run = OLD.key;
    RETURN OLD;
END $$
"""
ON_DELETE = """
CREATE TRIGGER gradledger_forget_run BEFORE DELETE ON runs
FOR EACH ROW EXECUTE FUNCTION gradledger_forget_run()
"""


def upgrade() -> None:
    """Move the tables forward."""
    _create_runs()
    _create_run_details()
    _create_chunks()
    _create_facts()
    _create_buckets()
    _create_findings()
    _create_evaluation_state()
    _create_alert_plans()
    _create_outbox()
    _create_channels()
    _create_administration()
    if _is_postgres():
        op.execute(DELETE_WITH_RUN)
        op.execute(ON_DELETE)


def downgrade() -> None:
    """Remove all tables."""
    tables = sa.MetaData()
    tables.reflect(op.get_bind())
    names = [table.name for table in reversed(tables.sorted_tables)]
    for name in names:
        if name != "alembic_version" and not name[-2:].isdigit():  # partitions go with their table
            op.drop_table(name)
    if _is_postgres():
        op.execute("DROP FUNCTION gradledger_forget_run()")


def _is_postgres() -> bool:
    return op.get_bind().dialect.name == "postgresql"


# ---------------------------------------------------------------- columns


def _integer(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _number(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _float(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _string(name: str, length: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length=length), nullable=nullable)


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _blob(name: str, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary(), nullable=nullable)


# ---------------------------------------------------------------- tables


def _create(table: str, *columns: sa.Column[Any], keys: tuple[str, ...]) -> None:
    op.create_table(table, *columns, sa.PrimaryKeyConstraint(*keys, name=f"pk_{table}"))


def _create_of_run(table: str, *columns: sa.Column[Any], keys: tuple[str, ...] = ()) -> None:
    """A table whose rows belong to a run and are removed with it."""
    op.create_table(
        table,
        sa.Column("run", Key, nullable=False),
        *columns,
        _to_run(table),
        sa.PrimaryKeyConstraint("run", *keys, name=f"pk_{table}"),
    )


def _create_partitioned(table: str, *columns: sa.Column[Any], keys: tuple[str, ...]) -> None:
    """A table that holds many rows of a run."""
    if not _is_postgres():
        _create_of_run(table, *columns, keys=keys)
        return
    op.create_table(
        table,
        sa.Column("run", Key, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("run", *keys, name=f"pk_{table}"),
        postgresql_partition_by="HASH (run)",
    )
    for partition in range(PARTITIONS):
        op.execute(
            f"CREATE TABLE {table}_{partition:02d} PARTITION OF {table}"
            f" FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {partition})"
        )


def _to_run(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["run"], ["runs.key"], name=f"fk_{table}_run", ondelete="CASCADE"
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("key", Key, nullable=False),
        _string("id", 128),
        _string("name", 256),
        _string("project", 256),
        _float("started"),
        _float("last_seen"),
        _integer("world_size"),
        _blob("optimizers"),
        _blob("config"),
        _blob("environment"),
        _string("contract", 16, nullable=True),
        _float("declared_scale", nullable=True),
        sa.Column("ended", sa.Boolean(), nullable=False),
        _string("verdict", 16),
        _text("primary_title", nullable=True),
        _number("steps"),
        _number("tokens"),
        _number("revision"),
        _number("judged_revision"),
        _number("generation"),
        sa.Column("rewind", sa.Boolean(), nullable=False),
        _float("waiting_since", nullable=True),
        _float("stall_at", nullable=True),
        _string("evaluator", 64, nullable=True),
        sa.Column("earlier_version", sa.Boolean(), nullable=False, server_default=sa.false()),
        _text("evaluation_note", nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_runs"),
        sa.UniqueConstraint("id", name="uq_runs_id"),
    )
    op.create_index("ix_runs_last_seen", "runs", ["last_seen"])


def _create_run_details() -> None:
    _create_of_run("tags", _string("tag", 64), keys=("tag",))
    op.create_index("ix_tags_tag", "tags", ["tag"])
    _create_of_run(
        "ranks",
        _integer("rank"),
        _float("last_seen"),
        _float("ended", nullable=True),
        _float("beat", nullable=True),
        _number("backwards", nullable=True),
        keys=("rank",),
    )
    _create_of_run(
        "evals",
        _string("name", 256),
        _number("step"),
        _integer("rank"),
        _float("time"),
        _float("value", nullable=True),
        keys=("name", "step", "rank"),
    )
    _create_of_run(
        "checkpoints", _number("step"), _text("path"), _float("time"), keys=("step", "path")
    )


def _create_chunks() -> None:
    _create_partitioned(
        "chunks",
        _integer("optimizer"),
        _integer("rank"),
        _number("last"),
        _number("first"),
        _integer("held"),
        _float("received"),
        _blob("records"),
        keys=("optimizer", "rank", "last"),
    )
    if _is_postgres():  # the records are compressed already
        op.execute("ALTER TABLE chunks ALTER COLUMN records SET STORAGE EXTERNAL")
    op.create_index("ix_chunks_first", "chunks", ["run", "optimizer", "first"])


def _create_facts() -> None:
    _create_partitioned(
        "facts",
        _integer("optimizer"),
        _number("step"),
        _float("time"),
        _integer("ranks"),
        *(_float(figure, nullable=True) for figure in FIGURES),
        _text("failure", nullable=True),
        keys=("optimizer", "step"),
    )
    is_quarantined = sa.text("failure IS NOT NULL")
    op.create_index(
        "ix_facts_failure",
        "facts",
        ["run", "optimizer", "step"],
        sqlite_where=is_quarantined,
        postgresql_where=is_quarantined,
    )


def _create_buckets() -> None:
    parts = [f"{figure}_{part}" for figure in FIGURES for part in ("low", "mean", "high")]
    _create_of_run(
        "stretches",
        _integer("optimizer"),
        _number("stretch"),
        _number("first"),
        _number("last"),
        _float("time"),
        _number("steps"),
        _float("tokens_sum"),
        *(_float(name, nullable=True) for name in parts),
        *(_number(f"{figure}_count", nullable=True) for figure in FIGURES),
        keys=("optimizer", "stretch"),
    )


def _create_findings() -> None:
    _create_of_run(
        "findings",
        _string("rule", 128),
        _integer("optimizer"),
        _integer("position"),
        _string("severity", 16),
        _number("first_step"),
        _number("last_step"),
        _number("steps"),
        _text("title"),
        _text("summary"),
        _text("fix"),
        _blob("evidence"),
        _string("lifecycle", 16),
        _string("inhibited_by", 128, nullable=True),
        sa.Column("since_step", sa.BigInteger(), nullable=False, server_default="0"),
        keys=("rule", "optimizer"),
    )
    _create_of_run(
        "acknowledgements",
        _string("rule", 128),
        _integer("optimizer"),
        _number("seen_step"),
        _text("note"),
        _string("by", 256, nullable=True),
        _float("at"),
        _float("until", nullable=True),
        keys=("rule", "optimizer"),
    )
    _create_of_run("judgements", _string("verdict", 16), _blob("tree"), _blob("coverage"))


def _create_evaluation_state() -> None:
    _create_of_run(
        "progress",
        _integer("optimizer"),
        _number("step"),
        sa.Column("given_up", sa.BigInteger(), nullable=False, server_default="0"),
        keys=("optimizer",),
    )
    _create_of_run(
        "silences",
        _integer("optimizer"),
        _number("after"),
        _float("seconds"),
        _blob("silent"),
        _number("backwards", nullable=True),
        keys=("optimizer", "after"),
    )
    _create_of_run(
        "snapshots",
        _integer("level"),
        _number("steps"),
        _float("taken"),
        _blob("reached"),
        _string("evaluator", 64),
        _string("stamp", 64),
        _blob("state"),
        keys=("level",),
    )


def _create_alert_plans() -> None:
    _create_of_run("attention", _string("digest", 64), _float("look_at", nullable=True))
    op.create_index("ix_attention_look_at", "attention", ["look_at"])
    _create_of_run(
        "notices",
        _string("channel", 64),
        _string("rule", 128),
        _integer("optimizer"),
        _string("state", 16),
        _string("severity", 16),
        _number("last_step"),
        _float("at"),
        keys=("channel", "rule", "optimizer"),
    )


def _create_outbox() -> None:
    op.create_table(
        "alerts",
        sa.Column("number", Key, nullable=False),
        _string("id", 40),
        sa.Column("run", Key, nullable=True),
        _string("channel", 64),
        _blob("document"),
        _float("created"),
        _string("state", 16),
        _float("due"),
        _float("planned"),
        _integer("failures"),
        _integer("attempts"),
        _string("claim", 32, nullable=True),
        _float("finished", nullable=True),
        _to_run("alerts"),
        sa.PrimaryKeyConstraint("number", name="pk_alerts"),
        sa.UniqueConstraint("id", name="uq_alerts_id"),
    )
    op.create_index("ix_alerts_due", "alerts", ["state", "due"])
    op.create_index("ix_alerts_run", "alerts", ["run", "channel"])
    op.create_table(
        "alert_attempts",
        sa.Column("alert", Key, nullable=False),
        _integer("attempt"),
        _float("at"),
        _float("seconds", nullable=True),
        _string("fate", 16, nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        _text("detail", nullable=True),
        sa.ForeignKeyConstraint(
            ["alert"], ["alerts.number"], name="fk_alert_attempts_alert", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("alert", "attempt", name="pk_alert_attempts"),
    )


def _create_channels() -> None:
    _create(
        "channels",
        _string("name", 64),
        _blob("config", nullable=True),
        _float("created"),
        _float("disabled", nullable=True),
        _text("why", nullable=True),
        _float("held_until", nullable=True),
        keys=("name",),
    )
    _create("routes", _integer("position"), _blob("config"), keys=("position",))
    _create("keys", _string("name", 64), _blob("value"), keys=("name",))


def _create_administration() -> None:
    op.create_table(
        "tokens",
        _string("id", 16),
        _string("name", 256),
        _string("digest", 64),
        _string("scopes", 64),
        _float("created"),
        _float("revoked", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("digest", name="uq_tokens_digest"),
    )
    _create(
        "sessions", _string("digest", 64), _string("token", 16), _float("expires"), keys=("digest",)
    )
    op.create_index("ix_sessions_expires", "sessions", ["expires"])
    _create(
        "chosen",
        _string("name", 64),
        _blob("value"),
        _number("revision"),
        _float("changed"),
        keys=("name",),
    )
