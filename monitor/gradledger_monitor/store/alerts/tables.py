"""The tables of alerts: runs to plan, notifications, the outbox, channels and routes."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)
from sqlalchemy.types import Double

from gradledger_monitor.store.packing import Packed
from gradledger_monitor.store.tables import Key, metadata


def _run(primary_key: bool = True) -> Column[int]:
    to_run = ForeignKey("runs.key", ondelete="CASCADE")
    return Column("run", Key, to_run, primary_key=primary_key, nullable=not primary_key)


# When to plan the alerts of a run next. Written in the transaction of an evaluation; ``digest`` is
# of the properties of its findings that alerts depend on, so that an evaluation that changes none
# of them requests no plan.
alert_plans = Table(
    "alert_plans",
    metadata,
    _run(),
    Column("digest", String(64), nullable=False),
    Column("due", Double),  # NULL: not before the digest changes
    Index("ix_alert_plans_due", "due"),
)

# The last notification about a finding on a channel.
notifications = Table(
    "notifications",
    metadata,
    _run(),
    Column("channel", String(64), primary_key=True),
    Column("rule", String(128), primary_key=True),
    Column("optimizer", Integer, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
)

# The outbox. ``due`` is the time of the next attempt; while ``claim`` is set, it is when the claim
# expires. ``planned`` is the time of the next attempt by the back-off schedule: an attempt that was
# made earlier, because another message was delivered, does not count in ``failures``.
alerts = Table(
    "alerts",
    metadata,
    Column("number", Key, primary_key=True),
    Column("id", String(40), nullable=False, unique=True),
    _run(primary_key=False),  # NULL: a test message
    Column("channel", String(64), nullable=False),
    Column("document", Packed, nullable=False),
    Column("created", Double, nullable=False),
    Column("state", String(16), nullable=False),  # waiting, delivered, dead
    Column("due", Double, nullable=False),
    Column("planned", Double, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("claim", String(32)),
    Column("finished", Double),
    Index("ix_alerts_due", "state", "due"),
    Index("ix_alerts_run", "run", "channel"),
)

# Every attempt, written before it is made: without an outcome it was interrupted, or is under way.
alert_attempts = Table(
    "alert_attempts",
    metadata,
    Column("alert", Key, ForeignKey("alerts.number", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("seconds", Double),
    Column("outcome", String(16)),
    Column("status", Integer),
    Column("detail", Text),
)

# Channels created in the service; without ``config``, the state of one in the settings.
channels = Table(
    "channels",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("config", Packed),
    Column("created", Double, nullable=False),
    Column("disabled", Double),
    Column("why", Text),
    Column("held_until", Double),
)

routes = Table(
    "routes",
    metadata,
    Column("position", Integer, primary_key=True),
    Column("config", Packed, nullable=False),
)

# Secret keys that are only in this database.
keys = Table(
    "keys",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
