"""The page that compares several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.pages.layout import no_run, not_found, page
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Curves, Span
from gradledger_web import charts
from gradledger_web.formatting import segment
from gradledger_web.runs import diff as run_diff
from gradledger_web.runs.diff import ComparedRun

router = APIRouter(include_in_schema=False)

MIN_RUNS, MAX_RUNS = 2, 8
POINTS = 100  # enough for a median
LAST_STEPS = 50  # as in the mean that the finding of a run states

Runs = Annotated[list[str] | None, Query(max_length=64)]


@router.get("/compare")
def compare(store: StoreDep, run: Runs = None) -> HTMLResponse:
    """Compare two to eight runs."""
    ids = list(dict.fromkeys(run or []))
    if not MIN_RUNS <= len(ids) <= MAX_RUNS:
        hint = f"Select {MIN_RUNS} to {MAX_RUNS} runs in the list. You selected {len(ids)}."
        return not_found("These runs cannot be compared", hint)
    rows = [queries.get_run(store, run_id) for run_id in ids]
    unknown = [name for name, row in zip(ids, rows, strict=True) if row is None]
    if unknown:
        return no_run(unknown[0])
    runs = [_compared(store, row) for row in rows if row is not None]
    return page(
        "compare.html",
        runs=runs,
        colours=charts.PALETTE,
        tables=_tables(runs),
        changes=run_diff.changes(runs),
        charts=charts.comparison_charts(_labels(runs)),
        with_data={name for r in runs for name, value in r.medians.items() if value is not None},
        sources=[_source(compared.run) for compared in runs],
    )


def _compared(store: Store, run: RunRow) -> ComparedRun:
    whole = curves.curves(store, run.id, points=POINTS)
    last = queries.last_evaluated_steps(store, run.id).get(0, 0)
    end = curves.curves(store, run.id, Span(0, max(last - LAST_STEPS + 1, 0), None))
    evaluation = queries.evaluation(store, run.id)
    return ComparedRun(run, evaluation, _over(median, whole), _over(_mean, end))


def _mean(values: list[float]) -> float:
    """Infinite where the sum is; the functions of the standard library raise an error there."""
    return sum(values) / len(values)


def _over(middle: Callable[[list[float]], float], curve: Curves) -> dict[str, float | None]:
    """The median or the mean of what was measured of each figure."""
    measured = {name: [v for v in values if v is not None] for name, values in curve.items()}
    return {name: middle(values) if values else None for name, values in measured.items()}


def _tables(runs: list[ComparedRun]) -> list[tuple[str, list[run_diff.DiffRow]]]:
    tables = [
        ("Training: medians of all steps", run_diff.measured_rows(runs)),
        (f"Results: means of the last {LAST_STEPS} steps", run_diff.result_rows(runs)),
        ("Findings", run_diff.finding_rows(runs)),
        ("Configuration", run_diff.config_rows(runs)),
        ("Environment", run_diff.environment_rows(runs)),
    ]
    return [(title, rows) for title, rows in tables if rows]


def _labels(runs: list[ComparedRun]) -> list[str]:
    """The names of the runs; with the id where several have the same name."""
    names = Counter(compared.run.name for compared in runs)
    return [
        compared.run.name
        if names[compared.run.name] == 1
        else f"{compared.run.name} ({compared.run.id})"
        for compared in runs
    ]


def _source(run: RunRow) -> dict[str, Any]:
    return {"id": run.id, "series": f"/api/v1/runs/{segment(run.id)}/series"}
