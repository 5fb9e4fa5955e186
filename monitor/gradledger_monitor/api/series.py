"""Curves out: the figures of a run, its evaluations, and which micro-batches communicated."""

from __future__ import annotations

import gzip
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gradledger_monitor.api.documents import refusals
from gradledger_monitor.api.runs import BIG, RunId, existing
from gradledger_monitor.api.state import GivenStore
from gradledger_monitor.problems import Problem
from gradledger_monitor.store import curves, patterns
from gradledger_monitor.store.curves import Span
from gradledger_monitor.store.tables import FIGURES

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

DIGITS = 7  # a curve on a screen shows fewer
LARGE = 1e5  # from here on decimals are rounded instead: a time has ten digits before them
COMPRESSION = 3  # beyond it, time grows faster than the answer shrinks
MOST_COLUMNS = 400

Bound = Annotated[int | None, Query(ge=0, le=BIG)]
Columns = dict[str, list[float | None]]
Named = Annotated[
    str | None, Query(max_length=1024, description="Figures by name, with commas; all by default.")
]


@router.get("/{run}/series", response_model=Columns, responses=refusals(404, 422))
def get_series(
    request: Request,
    store: GivenStore,
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
    return compact(request, curves.curves(store, run, span, _named(figures), max_points))


def _named(figures: str | None) -> tuple[str, ...]:
    if not figures:
        return FIGURES
    named = tuple(dict.fromkeys(figures.split(",")))
    unknown = [name for name in named if name not in FIGURES]
    if unknown:
        reason = f"there is no figure {unknown[0]!r}; there are {', '.join(FIGURES)}"
        errors = [{"field": "query.figures", "reason": reason}]
        raise Problem(422, "The request has values that are not accepted.", errors=errors)
    return named


@router.get("/{run}/evaluations", response_model=dict[str, Columns], responses=refusals(404, 422))
def get_evaluations(
    request: Request, store: GivenStore, run: RunId, first: Bound = None, last: Bound = None
) -> Response:
    """Evaluation metrics by name: steps, and the lowest, mean and highest value there."""
    existing(store, run)
    return compact(request, curves.evaluations(store, run, Span(0, first, last)))


@router.get(
    "/{run}/collectives/{optimizer}", response_model=patterns.Pattern, responses=refusals(404, 422)
)
def get_collectives(
    request: Request,
    store: GivenStore,
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
    body = msgspec.json.encode(_rounded(msgspec.to_builtins(content)))
    headers = {"Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, COMPRESSION, mtime=0)
    return Response(body, headers=headers, media_type="application/json")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < LARGE else round(value, 2)
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
