"""Records in: read within bounds, taken apart, stored in one transaction, then acknowledged."""

from __future__ import annotations

import time
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Request

from gradledger_monitor import batches, clock
from gradledger_monitor.api import bodies, replies
from gradledger_monitor.api.documents import Acknowledged, refusals
from gradledger_monitor.api.encodings import decompress
from gradledger_monitor.api.state import Answer, GivenState, State
from gradledger_monitor.problems import Problem
from gradledger_monitor.store.writing import Stored, store_batch

router = APIRouter(prefix="/api/v1", tags=["records"])

RECORDS = "records"
SHOWN_ERRORS = 1_000

# who speaks, one optimizer step of two micro-batches, the end of the process
EXAMPLE = """\
{"type":"run","v":1,"run":"20270131-120000-a1b2c3","name":"my run","optimizers":["AdamW"]}
{"type":"step","optimizer":0,"step":1,"time":1801396800.5,"norm":1.7,"lr":0.0003,"micro_batches":[\
{"loss":0.5,"terms":[{"kind":"NllLossBackward0","reduction":"sum","tokens":10,"weight":0.025}]},\
{"loss":1.5,"terms":[{"kind":"NllLossBackward0","reduction":"sum","tokens":30,"weight":0.025}]}]}
{"type":"end","time":1801396801.0,"steps":[1]}
"""
_LINES = {"schema": {"type": "string"}, "example": EXAMPLE}
_BODY = {"content": {bodies.JSON_LINES[0]: _LINES}, "required": True}


@router.post(
    "/records",
    response_model=Acknowledged,
    responses=refusals(400, 413, 415, 422, 429, 503),
    openapi_extra={"requestBody": _BODY},
)
async def post_records(request: Request, state: GivenState) -> Answer:
    """Store a batch of records: JSON lines, a run record first. Sending one again is harmless.

    With the header ``Gradledger-Findings`` the answer also tells what was found in the run so far,
    unless the header names what is ``known`` already.
    """
    bodies.check_type(request)
    limit = state.settings.max_body_bytes
    encoding = request.headers.get("content-encoding", "")
    with state.turns.batch(), state.room.for_one() as take:
        body = await bodies.read(request, limit, take)
        known = request.headers.get(replies.ASKS)
        result, besides = await to_thread.run_sync(
            _take_in, state, body, encoding, limit, known, limiter=state.ingest_limit
        )
    state.news.tell(RECORDS, "")
    return _answer(result, besides)


def _take_in(
    state: State, body: bytes, encoding: str, limit: int, known: str | None
) -> tuple[Stored, dict[str, Any]]:
    began = time.perf_counter()
    batch = batches.read(decompress(body, encoding, limit))
    if not batch.reports and not batch.refused:
        raise Problem(400, "The body holds no record.")
    stored = store_batch(state.store, batch, clock.now())
    state.metrics.took_in(stored, time.perf_counter() - began)
    if (newest := batch.newest()) is not None:
        state.metrics.lag.observe(max(0.0, time.time() - newest))
    if known is None or not batch.reports:
        return stored, {}
    return stored, replies.reply(state.store, batch.reports[-1].run.run, known)


def _answer(result: Stored, besides: dict[str, Any]) -> Answer:
    counts: dict[str, Any] = {"stored": result.stored, "duplicates": result.duplicates}
    if not result.refused:
        return Answer({**counts, **besides})
    refused = sorted(result.refused, key=lambda refusal: refusal.line)
    raise Problem(
        422,
        f"{len(refused)} lines were refused; all others are stored.",
        **counts,
        refused=len(refused),
        errors=refused[:SHOWN_ERRORS],
    )
