"""Assembles the service: database, evaluator, routes, pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI

import gradledger
from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.api import problem_handlers
from gradledger_monitor.api.app_state import State
from gradledger_monitor.api.live_events import EVALUATED, LiveEvents, publish
from gradledger_monitor.api.middleware.access import RECORDS, Access, confirm_route
from gradledger_monitor.api.middleware.compression import Compression
from gradledger_monitor.api.middleware.connection_log import ConnectionLog
from gradledger_monitor.api.middleware.credentials import CredentialStore
from gradledger_monitor.api.middleware.origins import HostCheck, SameOriginCheck
from gradledger_monitor.api.middleware.rate_limits import RateLimiter
from gradledger_monitor.api.middleware.request_bodies import BodyLimit
from gradledger_monitor.api.middleware.request_log import RequestLog
from gradledger_monitor.api.middleware.security_headers import SecurityHeaders
from gradledger_monitor.api.openapi import OPENAPI, describe
from gradledger_monitor.api.routers import PAGES, ROUTES
from gradledger_monitor.api.routes import ingest
from gradledger_monitor.common import clock
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.ingest.admission import LargeBatchSlot, MemoryBudget
from gradledger_monitor.ingest.bounds import Bounds
from gradledger_monitor.ingest.priority import IngestPriority
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.postgres_pubsub import pubsub_for
from gradledger_monitor.telemetry.metrics import Metrics
from gradledger_monitor.telemetry.readiness import Readiness
from gradledger_monitor.workers.evaluator import EvaluationPass, Evaluator
from gradledger_monitor.workers.retention import RetentionWorker
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

FAILED_TOKENS_PER_SECOND = 0.2  # by client address
FAILED_TOKENS_AT_ONCE = 10
# Innermost first. A request passes SecurityHeaders, which also apply to refusals of the others;
# RequestLog, so that refused requests have an id and a log line; HostCheck, because SameOriginCheck
# compares the origin with the host; SameOriginCheck, so that a forged request neither uses a
# session nor counts against its rate limit; Access; Compression; and BodyLimit.
MIDDLEWARE = (Compression, Access, SameOriginCheck, HostCheck, RequestLog, SecurityHeaders)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: State = app.state.service
    service.live_events.attach(asyncio.get_running_loop())
    await asyncio.to_thread(service.store.migrate)
    await asyncio.to_thread(service.alerts.register_channels, clock.now())
    service.pubsub.start()
    service.evaluator.start()
    service.delivery_worker.start()
    retention = RetentionWorker(service.store, service.overrides)
    retention.start()
    try:
        yield
    finally:
        await asyncio.to_thread(retention.stop)
        await asyncio.to_thread(service.evaluator.stop)
        await asyncio.to_thread(service.delivery_worker.stop)
        await asyncio.to_thread(service.pubsub.stop)
        service.store.close()


def _assemble(settings: Settings) -> State:
    store = Store(settings.db, settings.database_timeout)
    pubsub, live_events = pubsub_for(store), LiveEvents()
    limit = CapacityLimiter(settings.ingest_workers)
    metrics = Metrics(store, lambda: _queued(limit))
    alerts = Alerts(settings, settings.base_url, store)
    delivery_worker = alerts.delivery_worker(metrics.count_delivery)

    def on_evaluated(result: EvaluationPass) -> None:
        metrics.count_evaluation(result.steps, result.seconds, result.quarantined)
        publish(pubsub, result)
        delivery_worker.wake()

    ingest_priority, overrides = IngestPriority(), RuntimeOverrides(settings, store)
    evaluator = Evaluator(
        store,
        rank_timeout=settings.rank_timeout,
        interval=settings.evaluation_interval,
        listener=on_evaluated,
        overrides=overrides.rule_overrides,
        yield_to_ingest=ingest_priority.yield_to_batches,
    )
    pubsub.subscribe(ingest.RECORDS, lambda _: evaluator.wake())
    pubsub.subscribe(EVALUATED, live_events.on_message)
    pubsub.on_gap(lambda: live_events.catch_up(store))
    return State(
        settings=settings,
        overrides=overrides,
        store=store,
        evaluator=evaluator,
        pubsub=pubsub,
        live_events=live_events,
        ingest_limit=limit,
        ingest_memory=MemoryBudget(settings.ingest_queue_bytes),
        large_batch_slot=LargeBatchSlot(),
        bounds=_bounds(settings),
        readiness=Readiness(store, evaluator.is_running),
        ingest_priority=ingest_priority,
        metrics=metrics,
        connection_log=ConnectionLog(metrics.connections_ended),
        credentials=CredentialStore(settings, store),
        alerts=alerts,
        delivery_worker=delivery_worker,
        read_limiter=RateLimiter(settings.reads_per_second),
        batch_limiter=RateLimiter(settings.batches_per_second),
        failed_token_limiter=RateLimiter(FAILED_TOKENS_PER_SECOND, FAILED_TOKENS_AT_ONCE),
    )


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        size=settings.max_body_bytes,
        lines=settings.max_batch_lines,
        memory=settings.max_batch_memory,
        seconds=settings.max_batch_seconds,
    )


def _queued(limit: CapacityLimiter) -> int:
    return limit.borrowed_tokens + limit.statistics().tasks_waiting


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service for these settings; it opens its database now and migrates it at startup."""
    app = FastAPI(
        title="gradledger",
        version=gradledger.__version__,
        lifespan=_lifespan,
        openapi_url=OPENAPI,
        docs_url=None,  # their scripts come from a CDN, and clusters have no internet
        redoc_url=None,
        dependencies=[Depends(confirm_route)],
    )
    app.state.service = _assemble(settings or Settings())
    app.state.store = app.state.service.store
    problem_handlers.install(app)
    app.add_middleware(BodyLimit, records=RECORDS)
    for middleware in MIDDLEWARE:
        app.add_middleware(middleware)
    for module in (*ROUTES, *PAGES):
        app.include_router(module.router)
    describe(app)
    return app
