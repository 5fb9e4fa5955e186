"""The page of one run, with its forms: acknowledge or snooze a finding, edit tags."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response

from gradledger_monitor.alerts.snooze import SNOOZE_PERIODS, snooze_seconds
from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.forms import MAX_NAME, MAX_NOTE, Form, read_form
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.api.pages.layout import RunId, no_run, not_found, page, redirect
from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model import step_facts
from gradledger_monitor.model.chart_metrics import metrics_of_rule
from gradledger_monitor.model.findings import Acknowledgement, Finding
from gradledger_monitor.rules.overrides import is_overridden
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import listing, queries, tags
from gradledger_monitor.store.runs.queries import RunRow, UnknownRun
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Curves, Span
from gradledger_web import charts, evidence_svg, headline, progress, step_table, tree_svg
from gradledger_web.formatting import segment

router = APIRouter(include_in_schema=False)

LATEST_STEPS = 20  # for the figures in the tree
MAX_EVAL_METRICS = 2  # in the tree
MAX_QUARANTINED = 8  # quarantined steps that the page lists

RuleId = Annotated[str, Path(min_length=1, max_length=128)]


@router.get("/runs/{run}")
def show_run(
    store: StoreDep, run: RunId, optimizer: Annotated[int, Query(ge=0, lt=4096)] = 0
) -> HTMLResponse:
    """One run: verdict, findings, tree, coverage, charts."""
    row = queries.get_run(store, run)
    if row is None:
        return no_run(run)
    evaluation = queries.evaluation(store, run)
    summary = headline.summarize(evaluation, row.steps)
    coverage = headline.coverage(evaluation)
    last_step = queries.last_evaluated_steps(store, run).get(optimizer, 0)
    latest = _latest(store, run, optimizer, last_step)
    return page(
        "run.html",
        run=row,
        evaluation=evaluation,
        summary=summary,
        tree=tree_svg.build_nodes(evaluation, summary.causes, latest, row.world_size),
        coverage=coverage,
        tally=headline.tally(coverage),
        quarantined=queries.quarantined_steps(store, run, MAX_QUARANTINED),
        chosen=[line for line in coverage if is_overridden(line.reason)],
        sketches={(f.rule, f.optimizer): _sketches(store, row, f) for f in evaluation.findings},
        spans=_spans(evaluation.findings, optimizer),
        progress=progress.progress_of(row, listing.rates(store, [run]).get(run)),
        tags=listing.tags_of(store, [run]).get(run, []),
        optimizer=optimizer,
        last_step=last_step,
        evaluated_steps=curves.evaluated_steps(store, run),
        charts=charts.RUN_CHARTS,
        palette=charts.PALETTE,
        with_data=_with_data(store, run, optimizer),
        snooze_periods=SNOOZE_PERIODS,
    )


def _latest(store: Store, run: str, optimizer: int, last: int) -> Curves:
    figures = curves.curves(store, run, Span(optimizer, max(last - LATEST_STEPS, 0), last))
    metrics = list(curves.eval_curves(store, run).items())[:MAX_EVAL_METRICS]
    means = {f"{tree_svg.EVALUATION_PREFIX}{name}": curve["mean"] for name, curve in metrics}
    return {**figures, **means}


def _with_data(store: Store, run: str, optimizer: int) -> set[str]:
    measured = curves.measured_metrics(store, run, optimizer)
    return charts.charts_with_data(measured, curves.has_eval_metrics(store, run))


def _spans(findings: list[Finding], optimizer: int) -> list[dict[str, Any]]:
    """The spans of steps that the charts shade."""
    return [
        {
            "rule": finding.rule,
            "severity": "info" if finding.acknowledged else finding.severity,
            "first": finding.first_step,
            "last": finding.last_step,
            "charts": charts.charts_of_rule(finding.rule),
        }
        for finding in findings
        if finding.optimizer == optimizer and finding.inhibited_by is None
    ]


# ------------------------------------------------------------------ evidence


def _sketches(store: Store, run: RunRow, finding: Finding) -> dict[str, Any]:
    """The charts of a finding: its figure around the first step, and the window of that step."""
    first = finding.first_step
    span = Span(
        finding.optimizer,
        max(first - evidence_svg.STEPS_AROUND, 0),
        first + evidence_svg.STEPS_AROUND,
    )
    figures = metrics_of_rule(finding.rule)
    values = curves.curves(store, run.id, span, figures, points=2 * evidence_svg.STEPS_AROUND + 1)
    lines = (
        evidence_svg.line_chart(f, values["step"], values[f], first, finding.last_step)
        for f in figures
    )
    line = next((drawn for drawn in lines if drawn is not None), None)
    return {"line": line, "pairs": _pairs(store, run, finding)}


def _pairs(store: Store, run: RunRow, finding: Finding) -> evidence_svg.ShareBars | None:
    if finding.rule not in ("reduction.token_weights_unequal", "ddp.uneven_microbatches"):
        return None
    records = queries.step_records(store, run.id, finding.optimizer, finding.first_step)
    if not records:
        return None
    info = queries.run_info(store, run.id)
    try:
        with evaluating(finding.first_step):
            merged = step_facts.merge(info, finding.optimizer, finding.first_step, records)
            rows = step_table.rows(merged)
    except CannotEvaluate:
        return None
    if merged.ledger is None or not rows:
        return None
    return evidence_svg.share_bars(
        finding.first_step,
        [row.label for row in rows],
        [row.token_share for row in rows],
        [row.gradient_share for row in rows],
    )


# ------------------------------------------------------------------ forms


@router.post("/runs/{run}/findings/{rule}/acknowledgement")
async def acknowledge(request: Request, store: StoreDep, run: RunId, rule: RuleId) -> Response:
    """Acknowledge or snooze a finding, or remove its acknowledgement."""
    form = await read_form(request)
    try:
        await run_in_threadpool(_acknowledge, store, run, rule, form)
    except LookupError as error:
        return not_found("Finding not found", f"{error}.", f"/runs/{segment(run)}", "The run")
    return redirect(f"/runs/{segment(run)}#finding-{segment(rule)}")


def _acknowledge(store: Store, run: str, rule: str, form: Form) -> None:
    if form.get("do") == "undo":
        return acknowledgements.remove_acknowledgement(store, run, rule)
    now, current = time.time(), caller.get()
    seconds = snooze_seconds(form.get("hours", ""))
    by = form.get("by", "")[:MAX_NAME] or (current.token.name if current else None)
    note = form.get("note", "")[:MAX_NOTE] or "no note"
    until = now + seconds if seconds else None
    acknowledgements.acknowledge(store, run, rule, Acknowledgement(note, by, now, until))


@router.post("/runs/{run}/tags")
async def tag(request: Request, store: StoreDep, run: RunId) -> Response:
    """Add a tag to a run, or remove one."""
    form = await read_form(request)
    change = tags.remove if form.get("do") == "remove" else tags.add
    try:
        await run_in_threadpool(change, store, run, form.get("tag", ""))
    except UnknownRun:
        return no_run(run)
    return redirect(f"/runs/{segment(run)}")
