"""What operators ask: is the process alive, can it do its work, and how does it do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gradledger_monitor.api.app_state import Answer, GivenState
from gradledger_monitor.api.schemas import refusals
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.telemetry import metrics

router = APIRouter(tags=["operations"])

METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


@router.get("/healthz")
async def get_health() -> Answer:
    """The process answers."""
    return Answer({"status": "alive"})


@router.get("/readyz", responses=refusals(503))
async def get_readiness(state: GivenState) -> Answer:
    """The database can be written and is not damaged, and the judge works; at most 5 s old."""
    problem = await state.readiness.problem()
    if problem is not None:
        raise Problem(503, problem)
    return Answer({"status": "ready"})


@router.get("/metrics", response_class=Response, responses=METRICS)
def get_metrics(state: GivenState) -> Response:
    """All metrics, for Prometheus."""
    return Response(state.metrics.text(), media_type=metrics.CONTENT_TYPE)
