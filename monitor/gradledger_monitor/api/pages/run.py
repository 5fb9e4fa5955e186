"""The page of one run, and what a person says there: of a finding, and of the run in tags."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.api.pages.layout import RunId, absent, after, form, no_run, page
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

LATEST = 20  # steps whose figures stand for how the run is now
METRICS = 2
QUARANTINED = 8  # steps that could not be evaluated, of which the page lists the first
HOUR = 3600.0
SNOOZES = {"hour": HOUR, "day": 24 * HOUR, "week": 7 * 24 * HOUR}

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
    read = headline.summarize(evaluation, row.steps)
    covered = headline.coverage(evaluation)
    last_step = queries.last_evaluated_steps(store, run).get(optimizer, 0)
    latest = _latest(store, run, optimizer, last_step)
    return page(
        "run.html",
        run=row,
        evaluation=evaluation,
        summary=read,
        tree=tree_svg.build_nodes(evaluation, read.causes, latest, row.world_size),
        coverage=covered,
        tally=headline.tally(covered),
        quarantined=queries.quarantined_steps(store, run, QUARANTINED),
        chosen=[line for line in covered if is_overridden(line.reason)],
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
    )


def _latest(store: Store, run: str, optimizer: int, last: int) -> Curves:
    found = curves.curves(store, run, Span(optimizer, max(last - LATEST, 0), last))
    told = list(curves.eval_curves(store, run).items())[:METRICS]
    return {**found, **{f"{tree_svg.EVALUATION_PREFIX}{name}": seen["mean"] for name, seen in told}}


def _with_data(store: Store, run: str, optimizer: int) -> set[str]:
    measured = curves.measured_metrics(store, run, optimizer)
    return charts.charts_with_data(measured, curves.has_eval_metrics(store, run))


def _spans(findings: list[Finding], optimizer: int) -> list[dict[str, Any]]:
    """What is shaded in the charts."""
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
    """The pictures of a finding: its figure around the first step, and the window of that step."""
    first = finding.first_step
    span = Span(
        finding.optimizer,
        max(first - evidence_svg.STEPS_AROUND, 0),
        first + evidence_svg.STEPS_AROUND,
    )
    figures = metrics_of_rule(finding.rule)
    seen = curves.curves(store, run.id, span, figures, points=2 * evidence_svg.STEPS_AROUND + 1)
    drawn = (
        evidence_svg.line_chart(f, seen["step"], seen[f], first, finding.last_step) for f in figures
    )
    line = next((each for each in drawn if each is not None), None)
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
    held, got = [row.token_share for row in rows], [row.gradient_share for row in rows]
    return evidence_svg.share_bars(finding.first_step, [row.label for row in rows], held, got)


# ------------------------------------------------------------------ what a person says


@router.post("/runs/{run}/findings/{rule}/acknowledgement")
async def acknowledge(request: Request, store: StoreDep, run: RunId, rule: RuleId) -> Response:
    """Acknowledge or snooze a finding, or take that back: the form below each of them."""
    said = await form(request)
    try:
        await run_in_threadpool(_acknowledge, store, run, rule, said)
    except LookupError as error:
        return absent("There is no such finding", f"{error}.", f"/runs/{segment(run)}", "The run")
    return after(f"/runs/{segment(run)}#finding-{segment(rule)}")


def _acknowledge(store: Store, run: str, rule: str, said: dict[str, str]) -> None:
    if said.get("do") == "undo":
        return acknowledgements.remove_acknowledgement(store, run, rule)
    now, who = time.time(), caller.get()
    seconds = SNOOZES.get(said.get("until", ""))
    by = said.get("by", "").replace("\0", "")[:256] or (who.token.name if who else None)
    note = said.get("note", "").replace("\0", "")[:4000] or "no note"
    told = Acknowledgement(note, by, now, now + seconds if seconds else None)
    acknowledgements.acknowledge(store, run, rule, told)


@router.post("/runs/{run}/tags")
async def tag(request: Request, store: StoreDep, run: RunId) -> Response:
    """Add a tag to a run, or take one away."""
    said = await form(request)
    change = tags.remove if said.get("do") == "remove" else tags.add
    try:
        await run_in_threadpool(change, store, run, said.get("tag", ""))
    except UnknownRun:
        return no_run(run)
    return after(f"/runs/{segment(run)}")
