"""The outbox: messages to send, stored with their reason and claimed by one process at a time.

A claim expires. If a process dies while it sends a message, another one sends it again under the
same id: every message is sent at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from sqlalchemy import Connection, and_, delete, exists, func, insert, or_, select, update

from gradledger_monitor.store.alerts.tables import alert_attempts, alerts, channels
from gradledger_monitor.store.database import Store

Document = dict[str, Any]  # JSON in the form that receivers depend on

WAITING, DELIVERED, DEAD = "waiting", "delivered", "dead"


@dataclass(frozen=True)
class DeliveryResult:
    """The result of one attempt to send."""

    outcome: Literal["delivered", "failed", "gone"]  # gone: the receiver refuses messages for ever
    detail: str = ""
    status: int | None = None  # of HTTP
    retry_after: float | None = None  # seconds that the receiver requested


@dataclass(frozen=True)
class ClaimedAlert:
    """A message that this process has claimed and sends."""

    number: int
    id: str
    run: int | None
    channel: str
    document: Document
    created: float
    planned: float
    failures: int
    attempt: int
    claim: str
    at: float


def enqueue(
    connection: Connection, run: int | None, channel: str, document: Document, now: float
) -> str:
    """Store a message to send. Earlier ones of the same run and channel become due at once."""
    name = f"msg_{uuid4().hex}"
    times = {"created": now, "due": now, "planned": now}
    row = {"id": name, "run": run, "channel": channel, "document": document, "state": WAITING}
    connection.execute(insert(alerts).values(**row, **times, failures=0, attempts=0))
    if run is not None:
        of_run = (alerts.c.run == run, alerts.c.channel == channel)
        connection.execute(_due_now(now).where(*of_run))
    return name


def enqueue_claimed(store: Store, channel: str, document: Document, now: float) -> ClaimedAlert:
    """Store a test message that the caller sends at once, and that is never sent again."""
    claim_id = uuid4().hex
    with store.writing() as connection:
        name = enqueue(connection, None, channel, document, now)
        of_id = alerts.c.id == name
        row = connection.execute(select(alerts).where(of_id)).one()
        values = {"claim": claim_id, "state": DEAD, "attempts": 1, "finished": now}
        connection.execute(update(alerts).where(of_id).values(values))
        attempt = {"alert": row.number, "attempt": 1, "at": now}
        connection.execute(insert(alert_attempts).values(attempt))
    return _claimed(row, claim_id, now)


def _due_now(now: float) -> Any:
    waiting = (alerts.c.state == WAITING, alerts.c.claim.is_(None), alerts.c.due > now)
    return update(alerts).where(*waiting).values(due=now)


# ---------------------------------------------------------------- claiming


def claim(store: Store, now: float, lease: float, limit: int) -> list[ClaimedAlert]:
    """Claim up to ``limit`` messages that are due, for ``lease`` seconds."""
    if not limit or not _some_due(store, now):
        return []
    claim_id = uuid4().hex
    with store.writing() as connection:
        query = select(alerts).where(*_due(now)).order_by(alerts.c.due, alerts.c.number)
        rows = connection.execute(query.limit(limit).with_for_update(skip_locked=True)).all()
        for row in rows:
            values = {"claim": claim_id, "due": now + lease, "attempts": row.attempts + 1}
            connection.execute(update(alerts).where(alerts.c.number == row.number).values(values))
            attempt = {"alert": row.number, "attempt": row.attempts + 1, "at": now}
            connection.execute(insert(alert_attempts).values(attempt))
    return [_claimed(row, claim_id, now) for row in rows]


def _claimed(row: Any, claim_id: str, now: float) -> ClaimedAlert:
    names = ("number", "id", "run", "channel", "document", "created", "planned", "failures")
    values = {name: row._mapping[name] for name in names}
    return ClaimedAlert(**values, attempt=row.attempts + 1, claim=claim_id, at=now)


def _due(now: float) -> tuple[Any, ...]:
    """Due, on a channel that is neither disabled nor held, and after earlier ones of its run."""
    earlier = alerts.alias("earlier")
    first = ~exists().where(
        earlier.c.run == alerts.c.run,
        earlier.c.channel == alerts.c.channel,
        earlier.c.state == WAITING,
        earlier.c.number < alerts.c.number,
    )
    blocked = or_(channels.c.disabled.is_not(None), channels.c.held_until > now)
    open_ = ~exists().where(channels.c.name == alerts.c.channel, blocked)
    return alerts.c.state == WAITING, alerts.c.due <= now, first, open_


def _some_due(store: Store, now: float) -> bool:
    with store.reading() as connection:
        query = select(alerts.c.number).where(alerts.c.state == WAITING, alerts.c.due <= now)
        return connection.execute(query.limit(1)).first() is not None


def next_due(store: Store) -> float | None:
    """When the next message is due, in Unix seconds."""
    with store.reading() as connection:
        query = select(func.min(alerts.c.due)).where(alerts.c.state == WAITING)
        due: float | None = connection.scalar(query)
    return due


# ---------------------------------------------------------------- results of attempts


def record_result(
    store: Store,
    message: ClaimedAlert,
    result: DeliveryResult,
    now: float,
    retry_at: Callable[[int], float | None],
) -> None:
    """Store the result of an attempt, and when the next one is.

    ``retry_at`` returns the time of the next attempt after a number of failures; None: no more.
    """
    with store.writing() as connection:
        _log(connection, message, result, now)
        values = _next_state(message, result, now, retry_at)
        claimed = (alerts.c.number == message.number, alerts.c.claim == message.claim)
        connection.execute(update(alerts).where(*claimed).values(values | {"claim": None}))
        if result.outcome == "delivered":  # the receiver is up: other messages can be sent, too
            connection.execute(_due_now(now).where(alerts.c.channel == message.channel))
        elif result.outcome == "gone":
            disable_channel(connection, message.channel, result.detail, now)
        elif result.retry_after:
            _hold(connection, message.channel, now + result.retry_after, now)


def _log(connection: Connection, message: ClaimedAlert, result: DeliveryResult, now: float) -> None:
    attempt = (
        alert_attempts.c.alert == message.number,
        alert_attempts.c.attempt == message.attempt,
    )
    values: dict[str, Any] = {"outcome": result.outcome, "status": result.status}
    values |= {"detail": result.detail, "seconds": round(now - message.at, 3)}
    connection.execute(update(alert_attempts).where(*attempt).values(values))


def _next_state(
    message: ClaimedAlert,
    result: DeliveryResult,
    now: float,
    retry_at: Callable[[int], float | None],
) -> dict[str, Any]:
    if result.outcome == "delivered":
        return {"state": DELIVERED, "finished": now}
    if result.outcome == "gone":
        return {"state": DEAD, "finished": now}
    if message.planned > now:  # the attempt was made before its time, and does not count
        return {"due": message.planned}
    at = retry_at(message.failures + 1)
    if at is None:
        return {"state": DEAD, "finished": now, "failures": message.failures + 1}
    return {"failures": message.failures + 1, "due": at, "planned": at}


def disable_channel(connection: Connection, channel: str, why: str, now: float) -> None:
    """Disable a channel. Messages that wait for it are dead, and can be replayed."""
    _set_state(connection, channel, {"disabled": now, "why": why}, now)
    waiting = (alerts.c.channel == channel, alerts.c.state == WAITING)
    connection.execute(update(alerts).where(*waiting).values(state=DEAD, finished=now))


def _hold(connection: Connection, channel: str, until: float, now: float) -> None:
    _set_state(connection, channel, {"held_until": until}, now)


def _set_state(connection: Connection, channel: str, values: dict[str, Any], now: float) -> None:
    of_channel = channels.c.name == channel
    if not connection.execute(update(channels).where(of_channel).values(values)).rowcount:
        connection.execute(insert(channels).values(name=channel, created=now, **values))


# ---------------------------------------------------------------- lists


@dataclass(frozen=True)
class Attempt:
    """One attempt to send; without an outcome it was interrupted, or is under way."""

    attempt: int
    at: float
    seconds: float | None
    outcome: str | None
    status: int | None
    detail: str | None


@dataclass(frozen=True)
class Alert:
    """A message, and all attempts to send it. Times are Unix seconds."""

    id: str
    channel: str
    state: str
    created: float
    due: float | None
    finished: float | None
    document: Document
    attempts: list[Attempt]


def list_alerts(
    store: Store,
    state: str | None = None,
    channel: str | None = None,
    limit: int = 50,
    offset: int = 0,
    name: str | None = None,
) -> list[Alert]:
    """Messages, the newest first."""
    filters = {alerts.c.state: state, alerts.c.channel: channel, alerts.c.id: name}
    conditions = [column == value for column, value in filters.items() if value is not None]
    query = select(alerts).where(*conditions).order_by(alerts.c.number.desc())
    with store.reading() as connection:
        rows = connection.execute(query.limit(limit).offset(offset)).all()
        attempts = _attempts(connection, [row.number for row in rows])
    return [_alert(row, attempts.get(row.number, [])) for row in rows]


def _attempts(connection: Connection, numbers: Sequence[int]) -> dict[int, list[Attempt]]:
    attempts: dict[int, list[Attempt]] = {}
    query = select(alert_attempts).where(alert_attempts.c.alert.in_(numbers))
    for row in connection.execute(query.order_by("alert", "attempt")):
        values = {name: row._mapping[name] for name in Attempt.__dataclass_fields__}
        attempts.setdefault(row.alert, []).append(Attempt(**values))
    return attempts


def _alert(row: Any, attempts: list[Attempt]) -> Alert:
    names = ("id", "channel", "state", "created", "finished", "document")
    values = {name: row._mapping[name] for name in names}
    return Alert(**values, due=row.due if row.state == WAITING else None, attempts=attempts)


def replay(store: Store, name: str, now: float) -> bool:
    """Send a message again under the same id; return False if there is none or it is being sent."""
    values = {"state": WAITING, "due": now, "planned": now, "failures": 0, "finished": None}
    with store.writing() as connection:
        unclaimed = and_(alerts.c.id == name, alerts.c.claim.is_(None))
        return connection.execute(update(alerts).where(unclaimed).values(values)).rowcount == 1


def counts(store: Store) -> dict[tuple[str, ...], int]:
    """Numbers of messages by channel and state."""
    query = select(alerts.c.channel, alerts.c.state, func.count())
    with store.reading() as connection:
        rows = connection.execute(query.group_by(alerts.c.channel, alerts.c.state))
        return {(channel, state): number for channel, state, number in rows}


def failing(store: Store) -> dict[str, int]:
    """Numbers of waiting messages whose last attempt failed, by channel."""
    retried = and_(alerts.c.state == WAITING, alerts.c.failures > 0)
    number = func.count().label("number")
    query = select(alerts.c.channel, number).where(retried).group_by(alerts.c.channel)
    with store.reading() as connection:
        return {row.channel: row.number for row in connection.execute(query)}


def prune(store: Store, before: float) -> int:
    """Remove messages that were delivered or dead before a time; return their number."""
    old = and_(alerts.c.state != WAITING, alerts.c.finished < before)
    with store.writing() as connection:
        return connection.execute(delete(alerts).where(old)).rowcount
