"""The page of one optimizer step: its ledger, figures and calls."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, RedirectResponse

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.pages.layout import RunId, no_run, not_found, page
from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model import step_facts
from gradledger_monitor.model.chart_metrics import CHART_METRICS, chart_metrics
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps import curves
from gradledger_web import charts, step_table, window_timeline
from gradledger_web.formatting import segment

router = APIRouter(include_in_schema=False)

Ordinal = Annotated[int, Path(ge=0, le=2**53)]
Index = Annotated[int, Path(ge=0, lt=4096)]


@router.get("/runs/{run}/steps")
def find_step(
    store: StoreDep,
    run: RunId,
    optimizer: Annotated[int, Query(ge=0, lt=4096)] = 0,
    step: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    first: Annotated[int, Query(ge=0, le=2**53)] = 0,
    last: Annotated[int, Query(ge=0, le=2**53)] = 2**53,
    figure: Annotated[str, Query(max_length=64)] = "norm",
) -> RedirectResponse:
    """Redirect to the step of a form, or to the extreme step behind a point of a chart."""
    if step is None and figure in CHART_METRICS:
        step = curves.step_of_extreme(store, run, curves.Span(optimizer, first, last), figure)
    return RedirectResponse(f"/runs/{segment(run)}/steps/{optimizer}/{step or first}", 303)


@router.get("/runs/{run}/steps/{optimizer}/{step}")
def show_step(store: StoreDep, run: RunId, optimizer: Index, step: Ordinal) -> HTMLResponse:
    """The ledger of one optimizer step."""
    row = queries.get_run(store, run)
    if row is None:
        return no_run(run)
    records = queries.step_records(store, run, optimizer, step)
    before, after = curves.neighbouring_steps(store, run, optimizer, step)
    if not records:
        return _no_step(row, optimizer, step, before if after else None)
    info = queries.run_info(store, run)
    failure = queries.step_failure(store, run, optimizer, step)
    try:
        with evaluating(step):
            context = _ledger(step_facts.merge(info, optimizer, step, records))
    except CannotEvaluate as error:
        failure = failure or str(error)
        context = _without_ledger(info, optimizer, step, records)
    if failure is not None:
        context["summary"] = step_table.StepSummary(
            f"{failure[:1].upper()}{failure[1:]}.", "incomplete"
        )
    return page("step.html", run=row, before=before, after=after, **context)


def _no_step(row: queries.RunRow, optimizer: int, step: int, nearest: int | None) -> HTMLResponse:
    hint = f"No record of step {step} of optimizer {optimizer} is stored."
    run_url = f"/runs/{segment(row.id)}"
    if nearest is None:
        return not_found("Step not found", hint, run_url, f"Back to {row.name}")
    hint += " The hooks skip some steps that take milliseconds; retention prunes old steps."
    return not_found(
        "Step not found", hint, f"{run_url}/steps/{optimizer}/{nearest}", f"Step {nearest}"
    )


def _ledger(merged: step_facts.StepFacts) -> dict[str, Any]:
    rows = step_table.rows(merged)
    shown = step_table.worst_rows(rows)
    return {
        "optimizer": merged.optimizer,
        "name": merged.optimizer_name,
        "step": merged.step,
        "records": merged.records,
        "complete": merged.complete,
        "ledger": merged.ledger,
        "figures": chart_metrics(merged),
        "rows": shown,
        "hidden": len(rows) - len(shown),
        "summary": step_table.summarize(rows, merged),
        "shares_figure": charts.shares_figure(shown) if merged.ledger else None,
        "grid": step_table.grid(rows, merged),
        "timeline": window_timeline.calls_of(merged.record),
    }


def _without_ledger(
    info: step_facts.RunInfo, optimizer: int, step: int, records: step_facts.RecordsByRank
) -> dict[str, Any]:
    """The context for a step that cannot be evaluated: only what the loop did."""
    names = info.optimizers
    return {
        "optimizer": optimizer,
        "name": names[optimizer] if optimizer < len(names) else "optimizer",
        "step": step,
        "records": records,
        "complete": len(records) >= info.world_size,
        "ledger": None,
        "figures": dict.fromkeys(CHART_METRICS),
        "rows": [],
        "hidden": 0,
        "shares_figure": None,
        "grid": None,
        "timeline": window_timeline.calls_of(records[min(records)]),
    }
