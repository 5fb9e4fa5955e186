"""Health and metrics: whether the process is alive, whether it is ready, Prometheus metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from gradledger_monitor.api.app_state import JsonResponse, StateDep
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.telemetry import metrics

router = APIRouter(tags=["operations"])

METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}


@router.get("/healthz")
async def get_health() -> JsonResponse:
    """The process responds."""
    return JsonResponse({"status": "alive"})


@router.get("/readyz", responses=problems(503))
async def get_readiness(state: StateDep) -> JsonResponse:
    """Whether the database is writable and intact and the evaluator runs; at most 5 s old."""
    problem = await state.readiness.problem()
    if problem is not None:
        raise Problem(503, problem)
    return JsonResponse({"status": "ready"})


@router.get("/metrics", response_class=Response, responses=METRICS)
def get_metrics(state: StateDep) -> Response:
    """All metrics, for Prometheus."""
    return Response(state.metrics.text(), media_type=metrics.CONTENT_TYPE)
