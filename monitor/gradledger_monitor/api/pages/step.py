"""The page of one optimizer step: its ledger, figures and calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import HTMLResponse, RedirectResponse

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.pages.layout import RunId, no_run, not_found, page
from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model import step_facts
from gradledger_monitor.model.chart_metrics import CHART_METRICS, chart_metrics
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.reports.windows import recent_windows
from gradledger_monitor.rules.balance.history import EXPLAINED
from gradledger_monitor.rules.balance.patterns import Closed
from gradledger_monitor.rules.objective_verdicts import ObjectiveVerdict, objective_verdicts
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps import curves
from gradledger_web import charts, step_table, window_timeline
from gradledger_web.formatting import segment

router = APIRouter(include_in_schema=False)

EARLIER = 2 * EXPLAINED  # windows before the step, for what they explain of its balance

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
            facts = step_facts.merge(info, optimizer, step, records)
            context = _ledger(Window(facts, _past(store, run, optimizer, step)))
    except CannotEvaluate as error:
        failure = failure or str(error)
        context = _without_ledger(info, optimizer, step, records)
    if failure is not None:
        context["summary"] = step_table.StepSummary(
            f"{failure[:1].upper()}{failure[1:]}.", "incomplete"
        )
    context["findings"] = _findings_at(store, run, optimizer, step)
    return page("step.html", run=row, before=before, after=after, **context)


def _findings_at(store: Store, run: str, optimizer: int, step: int) -> list[Finding]:
    """The findings whose steps include this one."""
    return [
        finding
        for finding in queries.evaluation(store, run).findings
        if finding.optimizer == optimizer and finding.first_step <= step <= finding.last_step
    ]


def _no_step(row: queries.RunRow, optimizer: int, step: int, nearest: int | None) -> HTMLResponse:
    hint = f"No record of step {step} of optimizer {optimizer} is stored."
    run_url = f"/runs/{segment(row.id)}"
    if nearest is None:
        return not_found("Step not found", hint, run_url, f"Back to {row.name}")
    hint += " The hooks skip some steps that take milliseconds; retention prunes old steps."
    return not_found(
        "Step not found", hint, f"{run_url}/steps/{optimizer}/{nearest}", f"Step {nearest}"
    )


def _past(store: Store, run: str, optimizer: int, step: int) -> list[Closed]:
    """What the rules remember of the windows before a step."""
    windows = recent_windows(store, run, optimizer, step - 1, EARLIER)
    return [window.closed() for window in windows]


@dataclass(frozen=True)
class Account:
    """One objective of the step: its verdict, its rows, its shares and its grid."""

    verdict: ObjectiveVerdict
    rows: list[step_table.Row]
    hidden: int  # rows that are neither shown nor equal to one that is
    shares_figure: charts.Figure | None
    grid: dict[int, list[step_table.Cell]] | None


def _ledger(window: Window) -> dict[str, Any]:
    facts = window.facts
    verdicts = objective_verdicts(window)
    uncounted = step_table.uncounted_rows(facts, verdicts)
    return {
        "optimizer": facts.optimizer,
        "name": facts.optimizer_name,
        "step": facts.step,
        "records": facts.records,
        "complete": facts.complete,
        "figures": _figures(facts),
        "accounts": [_account(facts, verdict) for verdict in verdicts],
        "uncounted": uncounted[: step_table.MOST_ROWS],
        "uncounted_hidden": max(len(uncounted) - step_table.MOST_ROWS, 0),
        "summary": step_table.summarize(facts, verdicts),
        "timeline": window_timeline.calls_of(facts.record),
    }


def _figures(facts: step_facts.StepFacts) -> dict[str, float | None]:
    """The figures of the charts; tokens count in a skipped step too, although without a weight."""
    figures = chart_metrics(facts)
    return figures if figures["tokens"] is not None else {**figures, "tokens": facts.batch_tokens}


def _account(facts: step_facts.StepFacts, verdict: ObjectiveVerdict) -> Account:
    rows = step_table.rows(facts, verdict)
    shown = step_table.worst_rows(rows)
    return Account(
        verdict=verdict,
        rows=shown,
        hidden=len(rows) - sum(1 + row.alike for row in shown),
        shares_figure=charts.shares_figure(shown, verdict.unit or "values"),
        grid=step_table.grid(rows),
    )


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
        "figures": dict.fromkeys(CHART_METRICS),
        "accounts": [],
        "uncounted": [],
        "uncounted_hidden": 0,
        "timeline": window_timeline.calls_of(records[min(records)]),
    }
