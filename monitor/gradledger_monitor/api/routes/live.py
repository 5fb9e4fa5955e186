"""Live events: pages are told when more steps of their run were judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import OperationalError
from sse_starlette import EventSourceResponse, ServerSentEvent

from gradledger_monitor.api.middleware.credentials import Caller, CredentialStore, caller
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.common.pubsub import PubSub
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.workers.evaluator import EvaluationPass

router = APIRouter(prefix="/api/v1/runs", tags=["live"])

EVALUATED = "evaluated"
PING_SECONDS = 15
VALID_SECONDS = 15.0  # between looks whether the session or token of a stream has ended
GRACE_SECONDS = 3.0


class _Told(msgspec.Struct):
    run: str
    event: dict[str, Any]


_decoder = msgspec.json.Decoder(_Told)


def publish(pubsub: PubSub, result: EvaluationPass) -> None:
    """Bring what a judge said to the pages that all processes serve."""
    if result.evaluation is None:
        return
    said = _told(result.evaluation)
    for optimizer, step in result.reached.items():
        event = {"optimizer": optimizer, "step": step, **said}
        message = msgspec.json.encode(_Told(result.run, event)).decode()
        pubsub.publish(EVALUATED, f"{result.run} {optimizer}", message)


class Subscription:
    """What one page has not been told yet: at most one event per optimizer, the newest."""

    def __init__(self) -> None:
        self._news: dict[int, dict[str, Any]] = {}
        self._some = anyio.Event()

    def put(self, events: list[dict[str, Any]]) -> None:
        """Replace what was not read yet."""
        self._news |= {event["optimizer"]: event for event in events}
        self._some.set()

    async def get(self, ending: anyio.Event) -> list[dict[str, Any]]:
        """What is new, as soon as something is; nothing when the service ends."""
        async with anyio.create_task_group() as waiting:
            for event in (self._some, ending):
                waiting.start_soon(_wait_for_one, event, waiting.cancel_scope)
        self._some = anyio.Event()
        news, self._news = list(self._news.values()), {}
        return news


async def _wait_for_one(event: anyio.Event, others: anyio.CancelScope) -> None:
    await event.wait()
    others.cancel()


class LiveEvents:
    """Carries what judges say, in any thread, to the pages that listen."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[str, set[Subscription]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop in which pages are served."""
        self._loop = loop

    def on_message(self, message: str) -> None:
        """Tell those who listen to a run what a judge said of it, here or in another process."""
        told = _decoder.decode(message)
        self._pass_on(told.run, [told.event])

    def catch_up(self, store: Store) -> None:
        """Tell all who listen where things stand, when something may have been missed."""
        for run in list(self._listeners):
            self._pass_on(run, _standing(store, run))

    def _pass_on(self, run: str, events: list[dict[str, Any]]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._deliver, run, events)

    def _deliver(self, run: str, events: list[dict[str, Any]]) -> None:
        for subscription in self._listeners.get(run, ()):
            subscription.put(events)

    @contextmanager
    def subscribed(self, run: str) -> Iterator[Subscription]:
        """Listen to a run for as long as the block lasts."""
        subscription = Subscription()
        self._listeners.setdefault(run, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._listeners[run].discard(subscription)
            if not self._listeners[run]:
                del self._listeners[run]


@router.get("/{run}/events", response_class=EventSourceResponse, responses=problems(404))
async def get_events(request: Request, run: str = Path(max_length=128)) -> EventSourceResponse:
    """Server-sent events: the current state, then ``evaluated`` after each evaluation."""
    service = request.app.state.service
    if await run_in_threadpool(queries.get_run, service.store, run) is None:
        raise Problem(404, f"There is no run {run!r}.")
    ending = anyio.Event()
    return EventSourceResponse(
        _events(service.live_events, service.store, run, ending, service.credentials, caller.get()),
        ping=PING_SECONDS,
        shutdown_event=ending,
        shutdown_grace_period=GRACE_SECONDS,
    )


async def _events(
    live: LiveEvents,
    store: Store,
    run: str,
    ending: anyio.Event,
    bearers: CredentialStore,
    who: Caller | None,
) -> AsyncIterator[ServerSentEvent]:
    with live.subscribed(run) as subscription:  # before the look, so that nothing falls between
        for event in await run_in_threadpool(_standing, store, run):
            yield _judged(event)
        checked = time.monotonic()
        while not ending.is_set():
            events: list[dict[str, Any]] = []
            with anyio.move_on_after(VALID_SECONDS):
                events = await subscription.get(ending)
            if time.monotonic() >= checked + VALID_SECONDS:
                if await _has_ended(bearers, who):
                    return
                checked = time.monotonic()
            for event in events:
                yield _judged(event)


async def _has_ended(bearers: CredentialStore, who: Caller | None) -> bool:
    """Whether the reader of a stream logged out since, or the token was revoked."""
    if who is None:
        return False
    try:
        return not await run_in_threadpool(bearers.is_valid, who)
    except OperationalError:
        return True  # unknown without the database: browsers connect again by themselves


def _judged(event: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(msgspec.json.encode(event).decode(), event=EVALUATED)


def _told(evaluation: EvaluationResult) -> dict[str, Any]:
    return {"verdict": evaluation.verdict, "findings": len(evaluation.findings)}


def _standing(store: Store, run: str) -> list[dict[str, Any]]:
    told = _told(queries.evaluation(store, run))
    reached = queries.last_evaluated_steps(store, run)
    return [{"optimizer": o, "step": step, **told} for o, step in reached.items()]
