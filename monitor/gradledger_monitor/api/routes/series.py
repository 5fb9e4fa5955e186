"""Curves out: the figures of a run, its evaluations, and which micro-batches communicated."""

from __future__ import annotations

import gzip
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.routes.runs import BIG, RunId, existing
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps import curves, patterns
from gradledger_monitor.store.steps.curves import Span

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

DIGITS = 7  # a curve on a screen shows fewer
LARGE = 1e5  # from here on decimals are rounded instead: a time has ten digits before them
COMPRESSION = 3  # beyond it, time grows faster than the answer shrinks
MOST_COLUMNS = 400
KEPT = 64  # answers that are not made anew while nothing new was judged
FEW = 2_000  # points of an answer that is kept: half a megabyte with all figures

Bound = Annotated[int | None, Query(ge=0, le=BIG)]
Columns = dict[str, list[float | None]]
Named = Annotated[
    str | None, Query(max_length=1024, description="Figures by name, with commas; all by default.")
]


@router.get("/{run}/series", response_model=Columns, responses=problems(404, 422))
def get_series(
    request: Request,
    store: StoreDep,
    run: RunId,
    optimizer: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    after: Bound = None,
    first: Bound = None,
    last: Bound = None,
    max_points: Annotated[int, Query(ge=100, le=20_000)] = curves.POINTS,
    figures: Named = None,
) -> Response:
    """The figures of judged steps, column by column; ``after`` asks for later steps only.

    Where there are more steps than ``max_points``, a point stands for those from ``first`` to
    ``step``: a figure is their mean, ``<figure>_low`` and ``<figure>_high`` are its extremes.
    """
    existing(store, run)
    start = first if after is None else max(after + 1, first or 0)
    span = Span(optimizer, start, last)
    version = curves.version(store, run)  # first: what is drawn is at least as new
    drawn = _drawn if max_points <= FEW else _drawn.__wrapped__
    zipped = _takes_gzip(request)
    return _json(drawn(store, version, run, span, _named(figures), max_points, zipped), zipped)


@lru_cache(maxsize=KEPT)
def _drawn(
    store: Store,
    version: curves.Version,
    run: str,
    span: Span,
    figures: tuple[str, ...],
    points: int,
    zipped: bool,
) -> bytes:
    """The same until another version: whoever looks at a run asks alike, and again and again."""
    return _compact(curves.curves(store, run, span, figures, points), zipped)


def _named(figures: str | None) -> tuple[str, ...]:
    if not figures:
        return CHART_METRICS
    named = tuple(dict.fromkeys(figures.split(",")))
    unknown = [name for name in named if name not in CHART_METRICS]
    if unknown:
        reason = f"there is no figure {unknown[0]!r}; there are {', '.join(CHART_METRICS)}"
        errors = [{"field": "query.figures", "reason": reason}]
        raise Problem(422, "The request has values that are not accepted.", errors=errors)
    return named


@router.get("/{run}/evaluations", response_model=dict[str, Columns], responses=problems(404, 422))
def get_evaluations(
    request: Request, store: StoreDep, run: RunId, first: Bound = None, last: Bound = None
) -> Response:
    """Evaluation metrics by name: steps, and the lowest, mean and highest value there."""
    existing(store, run)
    return compact(request, curves.eval_curves(store, run, Span(0, first, last)))


@router.get(
    "/{run}/collectives/{optimizer}",
    response_model=patterns.CollectivePattern,
    responses=problems(404, 422),
)
def get_collectives(
    request: Request,
    store: StoreDep,
    run: RunId,
    optimizer: Annotated[int, Path(ge=0, le=2**31 - 1)],
    first: Bound = None,
    last: Bound = None,
    steps: Annotated[int, Query(ge=2, le=MOST_COLUMNS)] = 120,
) -> Response:
    """Collectives inside each micro-batch's backward, of steps evenly spread over a span."""
    existing(store, run)
    return compact(request, patterns.collectives(store, run, Span(optimizer, first, last), steps))


def compact(request: Request, content: Any) -> Response:
    """JSON for drawing: few digits, and compressed where the caller understands that."""
    zipped = _takes_gzip(request)
    return _json(_compact(content, zipped), zipped)


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _compact(content: Any, zipped: bool) -> bytes:
    body = msgspec.json.encode(_rounded(msgspec.to_builtins(content)))
    return gzip.compress(body, COMPRESSION, mtime=0) if zipped else body


def _json(body: bytes, zipped: bool) -> Response:
    headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
    return Response(body, headers=headers, media_type="application/json")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < LARGE else round(value, 2)
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
