"""The service put together: database, judge, routes, pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import CapacityLimiter
from fastapi import FastAPI

import gradledger
from gradledger_monitor import problems
from gradledger_monitor.api import acknowledgements, ingest, live, operations, pages, runs
from gradledger_monitor.api.documents import ProblemDocument
from gradledger_monitor.api.headers import SecurityHeaders
from gradledger_monitor.api.live import Live
from gradledger_monitor.api.state import State
from gradledger_monitor.judge import Judge
from gradledger_monitor.settings import Settings
from gradledger_monitor.store.database import Store


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: State = app.state.service
    service.live.attach(asyncio.get_running_loop())
    await asyncio.to_thread(service.store.migrate)
    service.judge.start()
    try:
        yield
    finally:
        await asyncio.to_thread(service.judge.stop)
        service.store.close()


def _assemble(settings: Settings) -> State:
    store = Store(settings.db)
    told = Live()
    judge = Judge(
        store,
        settings.rank_timeout,
        settings.judge_interval,
        told.publish,
        choices=settings.choices,
    )
    return State(settings, store, judge, told, CapacityLimiter(settings.ingest_workers))


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service for these settings; it opens its database now and migrates it at start."""
    app = FastAPI(
        title="gradledger",
        version=gradledger.__version__,
        lifespan=_lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # their scripts come from elsewhere, and clusters have no internet
        redoc_url=None,
    )
    app.state.service = _assemble(settings or Settings())
    app.state.store = app.state.service.store
    problems.install(app)
    app.add_middleware(SecurityHeaders)
    for part in (ingest, runs, acknowledgements, live, operations, pages):
        app.include_router(part.router)
    _document_problems(app)
    return app


def _document_problems(app: FastAPI) -> None:
    """Add the shape of a problem to the OpenAPI document, which routes refer to."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schema = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
        definitions = schema.pop("$defs", {})
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= {**definitions, "ProblemDocument": schema}
        return document

    app.openapi = openapi  # type: ignore[method-assign]
