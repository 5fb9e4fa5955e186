"""Messages on their way: written with the reason for them, claimed by one process at a time.

A claim runs out. Whoever dies between two lines of code leaves a message that is sent again, under
the same id: at least once, and never not at all.
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

    outcome: Literal["delivered", "failed", "gone"]  # gone: the receiver wants no more, for ever
    detail: str = ""
    status: int | None = None  # of HTTP
    retry_after: float | None = None  # seconds that the receiver asked for


@dataclass(frozen=True)
class ClaimedAlert:
    """A message that is this process's to send."""

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
    """Have a message sent. Earlier ones of the same run to the same channel are tried first."""
    name = f"msg_{uuid4().hex}"
    times = {"created": now, "due": now, "planned": now}
    row = {"id": name, "run": run, "channel": channel, "document": document, "state": WAITING}
    connection.execute(insert(alerts).values(**row, **times, failures=0, attempts=0))
    if run is not None:
        before = (alerts.c.run == run, alerts.c.channel == channel)
        connection.execute(_sooner(now).where(*before))
    return name


def enqueue_claimed(store: Store, channel: str, document: Document, now: float) -> ClaimedAlert:
    """A test, which whoever asks for it sends at once, and nobody again."""
    mine = uuid4().hex
    with store.writing() as connection:
        name = enqueue(connection, None, channel, document, now)
        here = alerts.c.id == name
        row = connection.execute(select(alerts).where(here)).one()
        told = {"claim": mine, "state": DEAD, "attempts": 1, "finished": now}
        connection.execute(update(alerts).where(here).values(told))
        attempt = {"alert": row.number, "attempt": 1, "at": now}
        connection.execute(insert(alert_attempts).values(attempt))
    return _claimed(row, mine, now)


def _sooner(now: float) -> Any:
    waits = (alerts.c.state == WAITING, alerts.c.claim.is_(None), alerts.c.due > now)
    return update(alerts).where(*waits).values(due=now)


# ---------------------------------------------------------------- claiming


def claim(store: Store, now: float, lease: float, limit: int) -> list[ClaimedAlert]:
    """Messages that are due, as many as asked for; each is this process's for ``lease`` seconds."""
    if not limit or not _some_due(store, now):
        return []
    mine = uuid4().hex
    with store.writing() as connection:
        query = select(alerts).where(*_due(now)).order_by(alerts.c.due, alerts.c.number)
        rows = connection.execute(query.limit(limit).with_for_update(skip_locked=True)).all()
        for row in rows:
            told = {"claim": mine, "due": now + lease, "attempts": row.attempts + 1}
            connection.execute(update(alerts).where(alerts.c.number == row.number).values(told))
            attempt = {"alert": row.number, "attempt": row.attempts + 1, "at": now}
            connection.execute(insert(alert_attempts).values(attempt))
    return [_claimed(row, mine, now) for row in rows]


def _claimed(row: Any, mine: str, now: float) -> ClaimedAlert:
    names = ("number", "id", "run", "channel", "document", "created", "planned", "failures")
    told = {name: row._mapping[name] for name in names}
    return ClaimedAlert(**told, attempt=row.attempts + 1, claim=mine, at=now)


def _due(now: float) -> tuple[Any, ...]:
    """Due, on a channel that is neither off nor held, and after all earlier ones of its run."""
    earlier = alerts.alias("earlier")
    first = ~exists().where(
        earlier.c.run == alerts.c.run,
        earlier.c.channel == alerts.c.channel,
        earlier.c.state == WAITING,
        earlier.c.number < alerts.c.number,
    )
    off = or_(channels.c.disabled.is_not(None), channels.c.held_until > now)
    open_ = ~exists().where(channels.c.name == alerts.c.channel, off)
    return alerts.c.state == WAITING, alerts.c.due <= now, first, open_


def _some_due(store: Store, now: float) -> bool:
    with store.reading() as connection:
        query = select(alerts.c.number).where(alerts.c.state == WAITING, alerts.c.due <= now)
        return connection.execute(query.limit(1)).first() is not None


def next_due(store: Store) -> float | None:
    """When the next message is due, in Unix seconds."""
    with store.reading() as connection:
        query = select(func.min(alerts.c.due)).where(alerts.c.state == WAITING)
        at: float | None = connection.scalar(query)
    return at


# ---------------------------------------------------------------- what became of it


def record_result(
    store: Store,
    one: ClaimedAlert,
    result: DeliveryResult,
    now: float,
    retry_at: Callable[[int], float | None],
) -> None:
    """Write down an attempt, and what is next. ``retry_at`` gives a time for so many failures."""
    with store.writing() as connection:
        _log(connection, one, result, now)
        told = _next_state(one, result, now, retry_at)
        mine = (alerts.c.number == one.number, alerts.c.claim == one.claim)
        connection.execute(update(alerts).where(*mine).values(told | {"claim": None}))
        if result.outcome == "delivered":  # it is there: whatever waits for that channel may go
            connection.execute(_sooner(now).where(alerts.c.channel == one.channel))
        elif result.outcome == "gone":
            disable_channel(connection, one.channel, result.detail, now)
        elif result.retry_after:
            _hold(connection, one.channel, now + result.retry_after, now)


def _log(connection: Connection, one: ClaimedAlert, result: DeliveryResult, now: float) -> None:
    here = (alert_attempts.c.alert == one.number, alert_attempts.c.attempt == one.attempt)
    told: dict[str, Any] = {"outcome": result.outcome, "status": result.status}
    told |= {"detail": result.detail, "seconds": round(now - one.at, 3)}
    connection.execute(update(alert_attempts).where(*here).values(told))


def _next_state(
    one: ClaimedAlert, result: DeliveryResult, now: float, retry_at: Callable[[int], float | None]
) -> dict[str, Any]:
    if result.outcome == "delivered":
        return {"state": DELIVERED, "finished": now}
    if result.outcome == "gone":
        return {"state": DEAD, "finished": now}
    if one.planned > now:  # it was tried before its time
        return {"due": one.planned}
    at = retry_at(one.failures + 1)
    if at is None:
        return {"state": DEAD, "finished": now, "failures": one.failures + 1}
    return {"failures": one.failures + 1, "due": at, "planned": at}


def disable_channel(connection: Connection, channel: str, why: str, now: float) -> None:
    """Send nothing more to a channel; what waits for it is dead, and can be replayed."""
    _note(connection, channel, {"disabled": now, "why": why}, now)
    waiting = (alerts.c.channel == channel, alerts.c.state == WAITING)
    connection.execute(update(alerts).where(*waiting).values(state=DEAD, finished=now))


def _hold(connection: Connection, channel: str, until: float, now: float) -> None:
    _note(connection, channel, {"held_until": until}, now)


def _note(connection: Connection, channel: str, told: dict[str, Any], now: float) -> None:
    here = channels.c.name == channel
    if not connection.execute(update(channels).where(here).values(told)).rowcount:
        connection.execute(insert(channels).values(name=channel, created=now, **told))


# ---------------------------------------------------------------- for people


@dataclass(frozen=True)
class Attempt:
    """One attempt to send; without an outcome it was cut off, or is going on."""

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
    asked = {alerts.c.state: state, alerts.c.channel: channel, alerts.c.id: name}
    here = [column == value for column, value in asked.items() if value is not None]
    query = select(alerts).where(*here).order_by(alerts.c.number.desc())
    with store.reading() as connection:
        rows = connection.execute(query.limit(limit).offset(offset)).all()
        made = _attempts(connection, [row.number for row in rows])
    return [_alert(row, made.get(row.number, [])) for row in rows]


def _attempts(connection: Connection, numbers: Sequence[int]) -> dict[int, list[Attempt]]:
    made: dict[int, list[Attempt]] = {}
    query = select(alert_attempts).where(alert_attempts.c.alert.in_(numbers))
    for number, *said in connection.execute(query.order_by("alert", "attempt")):
        made.setdefault(number, []).append(Attempt(*said))
    return made


def _alert(row: Any, attempts: list[Attempt]) -> Alert:
    due = row.due if row.state == WAITING else None
    told = (row.id, row.channel, row.state, row.created, due, row.finished, row.document)
    return Alert(*told, attempts)


def replay(store: Store, name: str, now: float) -> bool:
    """Send a message again, under the same id; False when there is none of that id."""
    again = {"state": WAITING, "due": now, "planned": now, "failures": 0, "finished": None}
    with store.writing() as connection:
        here = and_(alerts.c.id == name, alerts.c.claim.is_(None))
        return connection.execute(update(alerts).where(here).values(again)).rowcount == 1


def counts(store: Store) -> dict[tuple[str, ...], int]:
    """How many messages, by channel and state."""
    query = select(alerts.c.channel, alerts.c.state, func.count())
    with store.reading() as connection:
        rows = connection.execute(query.group_by(alerts.c.channel, alerts.c.state))
        return {(channel, state): number for channel, state, number in rows}


def prune(store: Store, before: float) -> int:
    """Forget messages that were delivered, or given up, before then; how many there were."""
    old = and_(alerts.c.state != WAITING, alerts.c.finished < before)
    with store.writing() as connection:
        return connection.execute(delete(alerts).where(old)).rowcount
