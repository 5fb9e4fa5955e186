"""Ingest: a batch of records is read within limits, decoded, stored, then acknowledged."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from math import inf
from typing import Any

from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import APIRouter, Request

from gradledger_monitor.api.app_state import JsonResponse, State, StateDep
from gradledger_monitor.api.middleware import request_bodies
from gradledger_monitor.api.routes import ingest_reply
from gradledger_monitor.api.schemas import BatchResult, problems
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.ingest import decode
from gradledger_monitor.ingest.admission import RETRY_AFTER_SECONDS
from gradledger_monitor.ingest.content_encoding import decompress
from gradledger_monitor.store.steps.ingest import StoreResult, store_batch

router = APIRouter(prefix="/api/v1", tags=["records"])

RECORDS = "records"
WORKER_SECONDS = 5.0  # to wait for a worker

# the run, one optimizer step with two micro-batches, the end of the process
EXAMPLE = """\
{"type":"run","v":1,"run":"20270131-120000-a1b2c3","name":"my run","optimizers":["AdamW"]}
{"type":"step","optimizer":0,"step":1,"time":1801396800.5,"norm":1.7,"lr":0.0003,"micro_batches":[\
{"loss":0.5,"terms":[{"kind":"NllLossBackward0","reduction":"sum","tokens":10,"weight":0.025}]},\
{"loss":1.5,"terms":[{"kind":"NllLossBackward0","reduction":"sum","tokens":30,"weight":0.025}]}]}
{"type":"end","time":1801396801.0,"steps":[1]}
"""
_LINES = {"schema": {"type": "string"}, "example": EXAMPLE}
_BODY = {"content": {request_bodies.JSON_LINES[0]: _LINES}, "required": True}


@router.post(
    "/records",
    response_model=BatchResult,
    responses=problems(400, 413, 415, 422, 429, 503),
    openapi_extra={"requestBody": _BODY},
)
async def post_records(request: Request, state: StateDep) -> JsonResponse:
    """Store a batch of records: JSON lines, a run record first. A repetition is ignored.

    With the header ``Gradledger-Findings``, the response also has the findings of the run, unless
    the value of the header is their current ``findings_id``.
    """
    request_bodies.check_type(request)
    encoding = request.headers.get("content-encoding", "")
    with state.ingest_priority.batch(), state.ingest_memory.reserve() as reserve:
        body = await request_bodies.read(request, state.bounds.size, reserve)
        findings_id = request.headers.get(ingest_reply.HEADER)
        async with _worker(state.ingest_limit):
            result, reply = await to_thread.run_sync(
                _ingest, state, body, encoding, findings_id, limiter=CapacityLimiter(inf)
            )
    state.pubsub.publish(RECORDS, "")
    return _respond(result, reply)


@asynccontextmanager
async def _worker(limit: CapacityLimiter) -> AsyncIterator[None]:
    """Hold one of the workers. Raises a problem if none is free within ``WORKER_SECONDS``."""
    borrower = object()
    with move_on_after(WORKER_SECONDS) as waiting:
        await limit.acquire_on_behalf_of(borrower)
    if waiting.cancelled_caught:
        detail = "Too many batches wait to be stored; send it again."
        raise Problem(429, detail, retry_after=RETRY_AFTER_SECONDS)
    try:
        yield
    finally:
        limit.release_on_behalf_of(borrower)


def _ingest(
    state: State, body: bytes, encoding: str, findings_id: str | None
) -> tuple[StoreResult, dict[str, Any]]:
    began = time.perf_counter()
    check_time = state.bounds.timer()
    lines = decompress(body, encoding, state.bounds, check_time)
    state.bounds.check(lines)
    with state.large_batch_slot.hold() if state.bounds.is_large(lines) else nullcontext():
        return _store(state, lines, check_time, began, findings_id)


def _store(
    state: State,
    lines: bytes,
    check_time: Callable[[], None],
    began: float,
    findings_id: str | None,
) -> tuple[StoreResult, dict[str, Any]]:
    batch = decode.read(lines, check_time)
    if not batch.processes and not batch.refused.count:
        raise Problem(400, "The body contains no record.")
    state.readiness.check_file()
    stored = store_batch(state.store, batch, clock.now(), state.bounds.timer)
    state.metrics.count_batch(stored, time.perf_counter() - began)
    if (newest := batch.newest_step_time()) is not None:
        state.metrics.ingest_lag.observe(max(0.0, time.time() - newest))
    if findings_id is None or not batch.processes:
        return stored, {}
    return stored, ingest_reply.reply(state.store, batch.processes[-1].run.run, findings_id)


def _respond(result: StoreResult, reply: dict[str, Any]) -> JsonResponse:
    counts: dict[str, Any] = {"stored": result.stored, "duplicates": result.duplicates}
    refused = result.refused
    if not refused.count:
        return JsonResponse({**counts, **reply})
    detail = f"Refused lines: {refused.count:,}. All others are stored."
    if refused.count > len(refused.listed):
        detail += f" The first {len(refused.listed)} are listed."
    errors = sorted(refused.listed, key=lambda refusal: refusal.line)
    raise Problem(422, detail, **counts, refused=refused.count, errors=errors)
