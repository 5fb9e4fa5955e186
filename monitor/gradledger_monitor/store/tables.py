"""The tables: narrow columns for what is charted and queried, packed blobs for details."""

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

# SQLite generates keys only for a column declared exactly INTEGER.
Key = BigInteger().with_variant(Integer, "sqlite")


def _run_column() -> Column[int]:
    return Column("run", Key, ForeignKey("runs.key", ondelete="CASCADE"), primary_key=True)


def _many_rows_run_column() -> Column[int]:
    """Without a foreign key, which Postgres would check once per row: there a trigger removes these
    rows with their run. In SQLite the migration declares the key, which costs little there."""
    return Column("run", Key, primary_key=True)


# ``revision`` counts batches; ``evaluated_revision``: the one up to which all steps are evaluated.
# ``generation`` counts evaluations and rewinds: see evaluation/results.py. ``rewind``: evaluate
# from a snapshot or the first step again. ``waiting_since``: when the oldest step arrived that
# still misses ranks. ``stall_at``: when the run counts as stalled if no step arrives.
# ``evaluator``: the version of the code that evaluated the run last. ``earlier_version``: a part of
# the verdict is of an earlier evaluation that cannot be repeated. ``evaluation_note``: a sentence
# for people on why the run was evaluated again, or could not be. ``job``: equal in the attempts of
# one job, see model/attempts.py.
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
    Column("job", String(32), index=True),
    Index("ix_runs_last_seen", "last_seen"),
)

# Words by which people filter runs: from the configuration of the script, or added on the page.
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
    Column("heartbeat", Double),  # the last one; sent while no step ends
    Column("backwards", BigInteger),  # that it had run since its last step
)

# What people write about a run.
notes = Table(
    "notes",
    metadata,
    _run_column(),
    Column("text", Text, nullable=False),
    Column("by", String(256)),
    Column("at", Double, nullable=False),
)

# Records of one rank and optimizer that arrived together: see steps/chunks.py.
chunks = Table(
    "chunks",
    metadata,
    _many_rows_run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("last", BigInteger, primary_key=True),  # steps
    Column("first", BigInteger, nullable=False),
    Column("record_count", Integer, nullable=False),
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
    Column("value", Double),  # NULL: NaN, which SQLite cannot store
)

# Overrides of rules and of retention, set in the service. ``revision`` counts the changes.
overrides = Table(
    "overrides",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Packed, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("changed", Double, nullable=False),
)

# Checkpoints that scripts reported.
checkpoints = Table(
    "checkpoints",
    metadata,
    _run_column(),
    Column("step", BigInteger, primary_key=True),
    Column("path", Text, primary_key=True),
    Column("time", Double, nullable=False),
)

# Calls in the script's code, as the hooks saw them in the first steps of an optimizer.
code_locations = Table(
    "code_locations",
    metadata,
    _run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("role", String(16), primary_key=True),
    Column("file", String(1024), primary_key=True),
    Column("line", BigInteger, primary_key=True),
    Column("step", BigInteger, nullable=False),  # with whose record it arrived
    Column("rank", Integer, nullable=False),
    Column("position", Integer, nullable=False),  # among those of this record
    Column("location", Packed, nullable=False),
)

# Gradients, parameters and updates by layer, at a few steps: see steps/layers.py.
layers = Table(
    "layers",
    metadata,
    _run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("sharded", Boolean, nullable=False),
    Column("layers", Packed, nullable=False),
)

# The last evaluated step of each optimizer: a record of an earlier step is late. Up to the step
# ``pruned``, records may have been removed: no step up to there is evaluated again.
progress = Table(
    "progress",
    metadata,
    _run_column(),
    Column("optimizer", Integer, primary_key=True),
    Column("step", BigInteger, nullable=False),
    Column("pruned", BigInteger, nullable=False, server_default="0"),
)

# Periods without a step, as the evaluator noted them when they happened: records cannot show them.
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

# The evaluation state of a run at some of its steps: see evaluation/snapshots.py. ``stamp`` is a
# hash of what a state depends on, and ``evaluator`` of its code alone: see evaluator_version.py.
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
    *(Column(metric, Double) for metric in CHART_METRICS),
    Column("failure", Text),  # why the step is quarantined
)
Index(
    "ix_facts_failure",
    *(facts.c.run, facts.c.optimizer, facts.c.step),
    sqlite_where=facts.c.failure.is_not(None),
    postgresql_where=facts.c.failure.is_not(None),
)

# Steps of ``facts`` that a bucket covers; long runs are drawn from buckets.
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
    *(Column(f"{metric}_{part}", Double) for metric in CHART_METRICS for part in PARTS),
    # Steps that measured the metric: the weight of its mean. NULL in a bucket that was written
    # before they were counted, and whose steps retention had removed by then.
    *(Column(f"{metric}_count", BigInteger) for metric in CHART_METRICS),
)

findings = Table(
    "findings",
    metadata,
    _run_column(),
    Column("rule", String(128), primary_key=True),
    Column("optimizer", Integer, primary_key=True),
    Column("position", Integer, nullable=False),  # causes before symptoms
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

# Acknowledgements of findings. ``last_step`` is the last step that showed the finding when it was
# acknowledged: one that is resolved and begins again later is not acknowledged. An evaluation
# replaces findings, but never these.
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

# What people write about the findings of a rule, in whatever run, and to whom they assign them.
# ``assignee``: NULL if it stays the same, "" if nobody is to look after them any more.
comments = Table(
    "comments",
    metadata,
    Column("key", Key, primary_key=True),
    Column("rule", String(128), nullable=False, index=True),
    Column("text", Text, nullable=False),
    Column("by", String(256)),
    Column("at", Double, nullable=False),
    Column("assignee", String(256)),
)

evaluations = Table(
    "evaluations",
    metadata,
    _run_column(),
    Column("verdict", String(16), nullable=False),
    Column("tree", Packed, nullable=False),
    Column("coverage", Packed, nullable=False),
)

# API tokens: the hash and the scopes of each.
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

# Sessions of browsers: the hash of each cookie, and the id of the token that it acts for. The token
# in the settings has no row in ``tokens``.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("token", String(16), nullable=False),
    Column("expires", Double, nullable=False, index=True),
)
