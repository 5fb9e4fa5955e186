"""The stream of live events: pages get one when more steps of their run are evaluated."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import msgspec
from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import OperationalError
from sse_starlette import EventSourceResponse, ServerSentEvent

from gradledger_monitor.api.app_state import State, StateDep
from gradledger_monitor.api.live_events import EVALUATED, Event, current_events
from gradledger_monitor.api.middleware.credentials import Caller, CredentialStore, caller
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.store.runs import queries

router = APIRouter(prefix="/api/v1/runs", tags=["live"])

PING_SECONDS = 15
VALID_SECONDS = 15.0  # between two checks whether the session or token of a stream is still valid
GRACE_SECONDS = 3.0


@router.get("/{run}/events", response_class=EventSourceResponse, responses=problems(404))
async def get_events(service: StateDep, run: str = Path(max_length=128)) -> EventSourceResponse:
    """Server-sent events: the current state, then ``evaluated`` after each evaluation."""
    if await run_in_threadpool(queries.get_run, service.store, run) is None:
        raise Problem(404, f"There is no run {run!r}.")
    shutdown = anyio.Event()
    return EventSourceResponse(
        _stream(service, run, shutdown, caller.get()),
        ping=PING_SECONDS,
        shutdown_event=shutdown,
        shutdown_grace_period=GRACE_SECONDS,
    )


async def _stream(
    service: State, run: str, shutdown: anyio.Event, subscriber: Caller | None
) -> AsyncIterator[ServerSentEvent]:
    # subscribe before reading the current state: no event between the two is missed
    with service.live_events.subscribed(run) as subscription:
        for event in await run_in_threadpool(current_events, service.store, run):
            yield _evaluated(event)
        checked = time.monotonic()
        while not shutdown.is_set():
            events: list[Event] = []
            with anyio.move_on_after(VALID_SECONDS):
                events = await subscription.get(shutdown)
            if time.monotonic() >= checked + VALID_SECONDS:
                if await _has_expired(service.credentials, subscriber):
                    return
                checked = time.monotonic()
            for event in events:
                yield _evaluated(event)


async def _has_expired(credentials: CredentialStore, subscriber: Caller | None) -> bool:
    """Whether the subscriber logged out, or the token was revoked, since the stream began."""
    if subscriber is None:
        return False
    try:
        return not await run_in_threadpool(credentials.is_valid, subscriber)
    except OperationalError:
        return True  # unknown while the database is down; browsers reconnect automatically


def _evaluated(event: Event) -> ServerSentEvent:
    return ServerSentEvent(msgspec.json.encode(event).decode(), event=EVALUATED)
