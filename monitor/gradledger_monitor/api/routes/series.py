"""Curves over HTTP: figures, evaluation metrics, and collectives by micro-batch."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.middleware.compression import accepts_gzip
from gradledger_monitor.api.routes.runs import MAX_STEP, Optimizer, RunId, require_run
from gradledger_monitor.api.schemas import problems
from gradledger_monitor.common.problems import invalid_values
from gradledger_monitor.model.chart_metrics import CHART_METRICS
from gradledger_monitor.model.layers.combined import Layer
from gradledger_monitor.reports.layers import layers_by_step
from gradledger_monitor.reports.objectives import ObjectiveCurve, objective_curves
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps import curves, patterns
from gradledger_monitor.store.steps.curves import Span

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

DIGITS = 7  # a chart shows fewer
LARGE = 1e5  # from here on round to 2 decimals: a time has ten digits before them
COMPRESSION = 3  # higher levels cost more time than they save in size
MAX_COLUMNS = 400
CACHE_SIZE = 64  # responses
MAX_CACHED_POINTS = 2_000  # of a cached response: half a megabyte with all figures

Bound = Annotated[int | None, Query(ge=0, le=MAX_STEP)]
ShownSteps = Annotated[int, Query(ge=2, le=MAX_COLUMNS)]
Columns = dict[str, list[float | None]]
FigureNames = Annotated[
    str | None,
    Query(max_length=1024, description="Names of figures, separated by commas; default: all."),
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
    figures: FigureNames = None,
) -> Response:
    """The figures of evaluated steps as columns; ``after`` limits them to later steps.

    If there are more steps than ``max_points``, a point stands for the steps from ``first`` to
    ``step``: a figure is their mean, ``<figure>_low`` and ``<figure>_high`` are its extremes.
    """
    require_run(store, run)
    start = first if after is None else max(after + 1, first or 0)
    span = Span(optimizer, start, last)
    version = curves.version(store, run)  # read before the curves, which are at least as new
    gzipped = accepts_gzip(request.headers)
    encode = _encode_cached if max_points <= MAX_CACHED_POINTS else _encode_curves
    body = encode(store, version, run, span, _names(figures), max_points, gzipped)
    return _json(body, gzipped)


def _encode_curves(
    store: Store,
    _: curves.Version,
    run: str,
    span: Span,
    figures: tuple[str, ...],
    points: int,
    gzipped: bool,
) -> bytes:
    return _encode(curves.curves(store, run, span, figures, points), gzipped)


# Pages of one run request the same curves repeatedly; the version changes with the evaluation.
_encode_cached = lru_cache(maxsize=CACHE_SIZE)(_encode_curves)


def _names(figures: str | None) -> tuple[str, ...]:
    if not figures:
        return CHART_METRICS
    names = tuple(dict.fromkeys(figures.split(",")))
    unknown = [name for name in names if name not in CHART_METRICS]
    if unknown:
        reason = f"there is no figure {unknown[0]!r}; there are {', '.join(CHART_METRICS)}"
        raise invalid_values(("query.figures", reason))
    return names


@router.get("/{run}/evaluations", response_model=dict[str, Columns], responses=problems(404, 422))
def get_evaluations(
    request: Request, store: StoreDep, run: RunId, first: Bound = None, last: Bound = None
) -> Response:
    """Evaluation metrics by name: steps, and the lowest, mean and highest value at each."""
    require_run(store, run)
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
    optimizer: Optimizer,
    first: Bound = None,
    last: Bound = None,
    steps: ShownSteps = 120,
) -> Response:
    """Collectives in the backward of each micro-batch, for steps spread evenly over a span."""
    require_run(store, run)
    return compact(request, patterns.collectives(store, run, Span(optimizer, first, last), steps))


@router.get(
    "/{run}/objectives/{optimizer}",
    response_model=list[ObjectiveCurve],
    responses=problems(404, 422),
)
def get_objectives(
    request: Request,
    store: StoreDep,
    run: RunId,
    optimizer: Optimizer,
    first: Bound = None,
    last: Bound = None,
    steps: ShownSteps = 120,
) -> Response:
    """Balance and misallocation of each objective, for steps spread evenly over a span."""
    require_run(store, run)
    return compact(request, objective_curves(store, run, Span(optimizer, first, last), steps))


@dataclass(frozen=True)
class LayersAtStep:
    """All layers at one step, in the order of the model."""

    step: int
    layers: list[Layer]


@router.get(
    "/{run}/layers/{optimizer}", response_model=list[LayersAtStep], responses=problems(404, 422)
)
def get_layers(request: Request, store: StoreDep, run: RunId, optimizer: Optimizer) -> Response:
    """RMS of gradient, parameter and update of each layer, at the steps that measured it."""
    require_run(store, run)
    by_step = layers_by_step(store, run, optimizer)
    return compact(request, [LayersAtStep(step, layers) for step, layers in by_step])


def compact(request: Request, content: Any) -> Response:
    """JSON for charts: few digits, and compressed if the client accepts it."""
    gzipped = accepts_gzip(request.headers)
    return _json(_encode(content, gzipped), gzipped)


def _encode(content: Any, gzipped: bool) -> bytes:
    body = msgspec.json.encode(_rounded(msgspec.to_builtins(content)))
    return gzip.compress(body, COMPRESSION, mtime=0) if gzipped else body


def _json(body: bytes, gzipped: bool) -> Response:
    headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if gzipped else {})
    return Response(body, headers=headers, media_type="application/json")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if abs(value) < LARGE else round(value, 2)
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
