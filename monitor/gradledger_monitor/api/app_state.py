"""The parts of a running service: one object on the app, which routes receive as a dependency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from anyio import CapacityLimiter
from fastapi import Depends, Request
from starlette.responses import Response
from starlette.types import Scope

from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.alerts.delivery_worker import DeliveryWorker
from gradledger_monitor.api.live_events import LiveEvents
from gradledger_monitor.api.middleware.connection_log import ConnectionLog
from gradledger_monitor.api.middleware.credentials import CredentialStore
from gradledger_monitor.api.middleware.rate_limits import RateLimiter
from gradledger_monitor.common.pubsub import PubSub
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.ingest.admission import LargeBatchSlot, MemoryBudget
from gradledger_monitor.ingest.bounds import Bounds
from gradledger_monitor.ingest.priority import IngestPriority
from gradledger_monitor.store.database import Store
from gradledger_monitor.telemetry.metrics import Metrics
from gradledger_monitor.telemetry.readiness import Readiness
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides


@dataclass(frozen=True)
class State:
    """The parts of a running service."""

    settings: Settings
    overrides: RuntimeOverrides
    store: Store
    evaluator: Evaluator
    pubsub: PubSub
    live_events: LiveEvents
    ingest_limit: CapacityLimiter
    ingest_memory: MemoryBudget
    large_batch_slot: LargeBatchSlot
    bounds: Bounds
    readiness: Readiness
    ingest_priority: IngestPriority
    metrics: Metrics
    connection_log: ConnectionLog
    credentials: CredentialStore
    alerts: Alerts
    delivery_worker: DeliveryWorker
    read_limiter: RateLimiter
    batch_limiter: RateLimiter
    failed_token_limiter: RateLimiter  # by client address


def state_of(scope: Scope) -> State:
    """The service that a request is for."""
    state: State = scope["app"].state.service
    return state


# async although they do not wait: FastAPI calls other functions in a thread, for each request
async def _state(request: Request) -> State:
    return state_of(request.scope)


async def _store(request: Request) -> Store:
    return state_of(request.scope).store


StateDep = Annotated[State, Depends(_state)]
StoreDep = Annotated[Store, Depends(_store)]


class JsonResponse(Response):
    """JSON of plain values, dataclasses and structs; NaN and infinity are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)
