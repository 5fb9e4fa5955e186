"""Events about evaluated steps, from the evaluator of any process to the subscribed pages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec

from gradledger_monitor.common.pubsub import PubSub
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.workers.evaluator import EvaluationPass

EVALUATED = "evaluated"

Event = dict[str, Any]


class _RunEvent(msgspec.Struct):
    """An event of a run, as processes exchange it."""

    run: str
    event: Event


_decoder = msgspec.json.Decoder(_RunEvent)


def publish(pubsub: PubSub, result: EvaluationPass) -> None:
    """Publish the result of an evaluation pass to the pages that any process serves."""
    if result.evaluation is None:
        return
    summary = _summary(result.evaluation)
    for optimizer, step in result.reached.items():
        event = {"optimizer": optimizer, "step": step, **summary}
        message = msgspec.json.encode(_RunEvent(result.run, event)).decode()
        pubsub.publish(EVALUATED, f"{result.run} {optimizer}", message)


class Subscription:
    """The unsent events of one page: at most one per optimizer, the newest."""

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}
        self._changed = anyio.Event()

    def put(self, events: list[Event]) -> None:
        """Add events; they replace unsent ones of the same optimizers."""
        self._events |= {event["optimizer"]: event for event in events}
        self._changed.set()

    async def get(self, shutdown: anyio.Event) -> list[Event]:
        """The unsent events, as soon as there are any; none if the service shuts down."""
        async with anyio.create_task_group() as tasks:
            for event in (self._changed, shutdown):
                tasks.start_soon(_cancel_after, event, tasks.cancel_scope)
        self._changed = anyio.Event()
        events, self._events = list(self._events.values()), {}
        return events


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class LiveEvents:
    """Passes events from any thread to the subscribed pages."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscriptions: dict[str, set[Subscription]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop that serves the pages."""
        self._loop = loop

    def on_message(self, message: str) -> None:
        """Pass on an event that this or another process published."""
        decoded = _decoder.decode(message)
        self._pass_on(decoded.run, [decoded.event])

    def catch_up(self, store: Store) -> None:
        """Send the current state to all pages, because messages may have been missed."""
        for run in list(self._subscriptions):
            self._pass_on(run, current_events(store, run))

    def _pass_on(self, run: str, events: list[Event]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._deliver, run, events)

    def _deliver(self, run: str, events: list[Event]) -> None:
        for subscription in self._subscriptions.get(run, ()):
            subscription.put(events)

    @contextmanager
    def subscribed(self, run: str) -> Iterator[Subscription]:
        """Subscribe to a run for the duration of the block."""
        subscription = Subscription()
        self._subscriptions.setdefault(run, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[run].discard(subscription)
            if not self._subscriptions[run]:
                del self._subscriptions[run]


def _summary(evaluation: EvaluationResult) -> Event:
    return {"verdict": evaluation.verdict, "findings": len(evaluation.findings)}


def current_events(store: Store, run: str) -> list[Event]:
    """The state of a run as events, one for each optimizer."""
    summary = _summary(queries.evaluation(store, run))
    reached = queries.last_evaluated_steps(store, run)
    return [{"optimizer": o, "step": step, **summary} for o, step in reached.items()]
