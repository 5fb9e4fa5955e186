"""The tables. Narrow columns for what is charted and judged, packed blobs for the detail."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
)
from sqlalchemy.types import Double

from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_monitor.store.packing import Packed

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column declared exactly INTEGER.
Key = BigInteger().with_variant(Integer, "sqlite")


def _run_column() -> Column[int]:
    return Column("run", Key, ForeignKey("runs.key", ondelete="CASCADE"), primary_key=True)


def _many_rows_run_column() -> Column[int]:
    """Where Postgres checks no row: it would ask once for each. A trigger removes them with a run;
    SQLite checks, which costs little there."""
    return Column("run", Key, primary_key=True)


# ``revision`` counts batches and ``evaluated_revision`` says up to which the judge has looked;
# ``waiting_since`` is when the oldest step came that still misses ranks, and ``stall_at`` when the
# judge is to say that the run stands still. ``generation`` counts judgements: whoever judges from
# an older one must begin again. ``evaluator`` is the code that evaluated the run last.
# ``earlier_version``: part of the verdict is of an earlier evaluation that cannot be repeated;
# ``evaluation_note``: why the run was evaluated again, or could not be, in a sentence for people.
runs = Table(
    "runs",
    metadata,
    Column("key", Key, primary_key=True),
    Column("id", String(128), nullable=False, unique=True),
    Column("name", String(256), nullable=False),
    Column("project", String(256), nullable=False),
    Column("started", Double, nullable=False),
    Column("last_seen", Double, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("optimizers", Packed, nullable=False),
    Column("config", Packed, nullable=False),
    Column("environment", Packed, nullable=False),
    Column("contract", String(16)),
    Column("declared_scale", Double),
    Column("ended", Boolean, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("primary_title", Text),
    Column("steps", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("evaluated_revision", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("rewind", Boolean, nullable=False),
    Column("waiting_since", Double),
    Column("stall_at", Double),
    Column("evaluator", String(64)),
    Column("earlier_version", Boolean, nullable=False, server_default=false()),
    Column("evaluation_note", Text),
    Index("ix_runs_last_seen", "last_seen"),
)

# Words by which people sort their runs: what the script said, and what was added on the page.
tags = Table(
    "tags",
    metadata,
    _run_column(),
    Column("tag", String(64), primary_key=True, index=True),
)

ranks = Table(
    "ranks",
    metadata,
    _run_column(),
    Column("rank", Integer, primary_key=True),
    Column("last_seen", Double, nullable=False),
    Column("ended", Double),
    Column("heartbeat", Double),  # when it last said that it lives while no step ends
    Column("backwards", BigInteger),  # and how many backwards it had run since the last step
)

# What a rank sent of an optimizer at once: see store/chunks.py.
chunks = Table(
    "chunks",
    metadata,
    _many_rows_run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("last", BigInteger, primary_key=True),  # steps
    Column("first", BigInteger, nullable=False),
    Column("record_count", Integer, nullable=False),  # records
    Column("received", Double, nullable=False),
    Column("records", LargeBinary, nullable=False),  # by step
    Index("ix_chunks_first", "run", "optimizer", "first"),
)

evals = Table(
    "evals",
    metadata,
    _run_column(),
    Column("name", String(256), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("time", Double, nullable=False),
    Column("value", Double),  # NULL is not-a-number, which SQLite cannot keep
)

# What people chose in the service: its rules, its retention. ``revision`` counts the changes.
overrides = Table(
    "overrides",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Packed, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("changed", Double, nullable=False),
)

# What the script said that it saved.
checkpoints = Table(
    "checkpoints",
    metadata,
    _run_column(),
    Column("step", BigInteger, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("time", Double, nullable=False),
)

# Where each optimizer's judgement stands: later steps are judged next, earlier ones came late.
# Up to ``pruned``, records may have been removed to make room: no step there is judged again.
progress = Table(
    "progress",
    metadata,
    _run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("pruned", BigInteger, nullable=False, server_default="0"),
)

# What the judge noted when no step came: part of the record, for its moment cannot be had again.
inactivity = Table(
    "inactivity",
    metadata,
    _run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("after", BigInteger, primary_key=True),
    Column("seconds", Double, nullable=False),
    Column("silent", Packed, nullable=False),
    Column("backwards", BigInteger),
)

# The evaluation state of a run at some of its steps, so that it need not begin with the first.
# Written over by level, so that one is about as far back as one has to go; level -1 stays. What a
# state depends on is in ``stamp``, and its code alone in ``evaluator``: see evaluator_version.py.
snapshots = Table(
    "snapshots",
    metadata,
    _run_column(),
    Column("level", Integer, primary_key=True),
    Column("steps", BigInteger, nullable=False),
    Column("taken", Double, nullable=False),
    Column("reached", Packed, nullable=False),  # last step by optimizer
    Column("evaluator", String(64), nullable=False),
    Column("stamp", String(64), nullable=False),
    Column("state", LargeBinary, nullable=False),
)

facts = Table(
    "facts",
    metadata,
    _many_rows_run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("time", Double, nullable=False),
    Column("ranks", Integer, nullable=False),
    *(Column(figure, Double) for figure in CHART_METRICS),
    Column("failure", Text),  # why the step could not be evaluated: it is quarantined
)
Index(
    "ix_facts_failure",
    *(facts.c.run, facts.c.optimizer, facts.c.step),
    sqlite_where=facts.c.failure.is_not(None),
    postgresql_where=facts.c.failure.is_not(None),
)

# Neighbouring steps of ``facts``, so many in a row: what is drawn of a long run.
BUCKET_STEPS = 64
PARTS = ("low", "mean", "high")

buckets = Table(
    "buckets",
    metadata,
    _run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("bucket", BigInteger, primary_key=True),  # step // BUCKET_STEPS
    Column("first", BigInteger, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("time", Double, nullable=False),  # of the last
    Column("steps", BigInteger, nullable=False),
    Column("tokens_sum", Double, nullable=False),
    *(Column(f"{figure}_{part}", Double) for figure in CHART_METRICS for part in PARTS),
    # Steps in which the figure was measured: the weight of its mean. NULL in a bucket that was
    # written before they were counted, and whose steps retention had removed by then.
    *(Column(f"{figure}_count", BigInteger) for figure in CHART_METRICS),
)

findings = Table(
    "findings",
    metadata,
    _run_column(),
    Column("rule", String(128), primary_key=True),
    Column("optimizer", Integer, primary_key=True),
    Column("position", Integer, nullable=False),  # the engine's order: causes before symptoms
    Column("severity", String(16), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("summary", Text, nullable=False),
    Column("fix", Text, nullable=False),
    Column("evidence", Packed, nullable=False),
    Column("lifecycle", String(16), nullable=False),
    Column("inhibited_by", String(128)),
    Column("since_step", BigInteger, nullable=False, server_default="0"),
)

# What people said of findings. ``seen_step`` is the last step that showed the finding then: what
# begins again later is another matter. Judging anew replaces findings, and never these.
acknowledgements = Table(
    "acknowledgements",
    metadata,
    _run_column(),
    Column("rule", String(128), primary_key=True),
    Column("optimizer", Integer, primary_key=True),
    Column("last_step", BigInteger, nullable=False),
    Column("note", Text, nullable=False),
    Column("by", String(256)),
    Column("at", Double, nullable=False),
    Column("until", Double),
)

evaluations = Table(
    "evaluations",
    metadata,
    _run_column(),
    Column("verdict", String(16), nullable=False),
    Column("tree", Packed, nullable=False),
    Column("coverage", Packed, nullable=False),
)

# Who may speak with the service: of each token only its hash, and what its bearer may do.
tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(256), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scopes", String(64), nullable=False),
    Column("created", Double, nullable=False),
    Column("revoked", Double),
)

# Browsers that are logged in: of each cookie only its hash, and the id of the token it acts for.
# That of the settings has no row among the tokens.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("token", String(16), nullable=False),
    Column("expires", Double, nullable=False, index=True),
)
