"""The page of one run, with its forms: acknowledge or snooze a finding, edit tags."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response

from gradledger_monitor.alerts.snooze import SNOOZE_PERIODS
from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.forms import Form, optimizer_of, read_form
from gradledger_monitor.api.pages.acknowledgement_form import acknowledgement_of
from gradledger_monitor.api.pages.layout import RuleId, RunId, no_run, not_found, page, redirect
from gradledger_monitor.model.chart_metrics import metrics_of_rule
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.model.step_facts import IMPORTED_FROM
from gradledger_monitor.reports.layers import layers_by_step
from gradledger_monitor.reports.objectives import ObjectiveSummary, objective_curves, summarize
from gradledger_monitor.reports.topology import run_topology
from gradledger_monitor.reports.windows import at_step, recent_steps, recent_windows
from gradledger_monitor.rules.objective_verdicts import objective_verdicts
from gradledger_monitor.rules.overrides import is_overridden
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import attempts, listing, notes, queries, tags
from gradledger_monitor.store.runs.queries import RunRow, UnknownRun
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Curves, Span
from gradledger_web import (
    charts,
    evidence_svg,
    headline,
    layer_map,
    progress,
    rank_table,
    step_table,
    tree_svg,
)
from gradledger_web.formatting import finding_anchor, segment

router = APIRouter(include_in_schema=False)

LATEST_STEPS = 20  # for the figures in the tree
MAX_EVAL_METRICS = 2  # in the tree
MAX_QUARANTINED = 8  # quarantined steps that the page lists


@router.get("/runs/{run}")
def show_run(
    store: StoreDep, run: RunId, optimizer: Annotated[int, Query(ge=0, lt=4096)] = 0
) -> HTMLResponse:
    """One run: verdict, findings, tree, coverage, charts."""
    row = queries.get_run(store, run)
    if row is None:
        return no_run(run)
    evaluation = queries.evaluation(store, run)
    coverage = headline.coverage(evaluation)
    last_step = queries.last_evaluated_steps(store, run).get(optimizer, 0)
    latest = _latest(store, run, optimizer, last_step)
    recent = recent_steps(store, run, optimizer, last_step)
    windows = recent.windows
    objectives = summarize(optimizer, windows, evaluation.findings)
    shape = run_topology(store, run, optimizer, recent)
    absent = shape.absent if shape else {}
    summary = headline.summarize(evaluation, row.steps, row.world_size, absent)
    ranks = rank_table.table(shape.topology, shape.step, shape.never_sent) if shape else None
    return page(
        "run.html",
        run=row,
        evaluation=evaluation,
        summary=summary,
        tree=tree_svg.build_nodes(evaluation, summary.causes, latest, row.world_size),
        objectives=objectives,
        ranks=ranks,
        attempts=attempts.attempts(store, run, attempts.MOST_SHOWN),
        layers=layer_map.layer_maps(layers_by_step(store, run, optimizer)),
        why_no_layers=layer_map.why_empty(evaluation.coverage),
        coverage=coverage,
        tally=headline.tally(coverage),
        not_measured=headline.not_measured_by_reason(coverage),
        quarantined=queries.quarantined_steps(store, run, MAX_QUARANTINED),
        chosen=[line for line in coverage if is_overridden(line.reason)],
        sketches={
            (f.rule, f.optimizer): _sketches(store, row, f, windows, objectives)
            for f in evaluation.findings
        },
        spans=_spans(evaluation.findings, optimizer),
        progress=progress.progress_of(row, listing.rates(store, [run]).get(run), time.time()),
        tags=listing.tags_of(store, [run]).get(run, []),
        archived=tags.ARCHIVED,
        note=notes.notes_of(store, [run]).get(run),
        optimizer=optimizer,
        last_step=last_step,
        evaluated_steps=curves.evaluated_steps(store, run),
        charts=charts.charts_of(imported=IMPORTED_FROM in row.environment),
        unmeasured=charts.reasons(evaluation.tree),
        palette=charts.PALETTE,
        with_data=_with_data(store, run, optimizer, len(objectives)),
        snooze_periods=SNOOZE_PERIODS,
    )


def _latest(store: Store, run: str, optimizer: int, last: int) -> Curves:
    figures = curves.curves(store, run, Span(optimizer, max(last - LATEST_STEPS, 0), last))
    metrics = list(curves.eval_curves(store, run).items())[:MAX_EVAL_METRICS]
    means = {f"{tree_svg.EVALUATION_PREFIX}{name}": curve["mean"] for name, curve in metrics}
    return {**figures, **means}


def _with_data(store: Store, run: str, optimizer: int, objectives: int) -> set[str]:
    measured = curves.measured_metrics(store, run, optimizer)
    return charts.charts_with_data(measured, curves.has_eval_metrics(store, run), objectives)


def _spans(findings: list[Finding], optimizer: int) -> list[dict[str, Any]]:
    """The spans of steps that the charts shade."""
    return [
        {
            "id": finding_anchor(finding.rule, finding.optimizer),
            "title": finding.title,
            "severity": "info" if finding.acknowledged else finding.severity,
            "first": finding.first_step,
            "last": finding.last_step,
            "steps": marked_steps(finding),
            "charts": charts.charts_of_rule(finding.rule),
        }
        for finding in findings
        if finding.optimizer == optimizer and finding.inhibited_by is None
    ]


def marked_steps(finding: Finding) -> list[int]:
    """The steps that a finding names: where it began, and each spike that it counts."""
    evidence = finding.evidence
    changed = evidence.get("changed", {}).get("step")
    named = [finding.first_step, changed, evidence.get("since"), *evidence.get("spikes_at", ())]
    return sorted({step for step in named if isinstance(step, int) and step > 0})


# ------------------------------------------------------------------ evidence


def _sketches(
    store: Store,
    run: RunRow,
    finding: Finding,
    windows: Sequence[Window],
    recent: Sequence[ObjectiveSummary],
) -> dict[str, Any]:
    """The charts of a finding: its figure over its steps, and the window that its text is about."""
    margin = max(finding.last_step - finding.first_step, evidence_svg.LEAST_STEPS) // 10
    span = Span(
        finding.optimizer,
        max(finding.first_step - margin, 0),
        finding.last_step + margin,
    )
    figures = metrics_of_rule(finding.rule)
    values = curves.curves(store, run.id, span, figures, points=evidence_svg.POINTS)
    drawn = _figures_of_objective(store, run, finding, span, recent) or [
        (f, values["step"], values[f]) for f in figures
    ]
    marked = finding.first_step, finding.last_step
    lines = (evidence_svg.line_chart(f, steps, column, *marked) for f, steps, column in drawn)
    line = next((line for line in lines if line is not None), None)
    return {
        "line": line,
        "pairs": _pairs(store, run, finding, windows),
        "layers": layers_of(finding.evidence),
    }


def layers_of(evidence: Mapping[str, Any]) -> evidence_svg.LayerChart | None:
    """The gradients of the layers, of a finding that is about how they change with depth.

    None of more layers than the finding lists: its last one is not the last of the list.
    """
    if not {"gradients", "layers", "first", "last"} <= evidence.keys():
        return None
    if len(evidence["gradients"]) != evidence["layers"]:
        return None
    return evidence_svg.layer_chart(evidence["gradients"], evidence["first"], evidence["last"])


def _figures_of_objective(
    store: Store, run: RunRow, finding: Finding, span: Span, recent: Sequence[ObjectiveSummary]
) -> list[tuple[str, list[int], list[float | None]]]:
    """The balance and misallocation of the one objective, of several, that a finding is about."""
    name = finding.evidence.get("objective")
    if [(each.optimizer, each.name) for each in recent] == [(finding.optimizer, name)]:
        return []  # the figures of the steps are those of their only objective
    objectives = objective_curves(store, run.id, span, evidence_svg.POINTS) if name else []
    curve = next((c for c in objectives if c.name == name), None)
    if curve is None or len(objectives) == 1:
        return []
    columns = {"misallocation": curve.misallocation, "balance": curve.balance}
    figures = [f for f in metrics_of_rule(finding.rule) if f in columns]
    return [(f, curve.step, columns[f]) for f in figures]


def _pairs(
    store: Store, run: RunRow, finding: Finding, windows: Sequence[Window]
) -> evidence_svg.ShareBars | None:
    if finding.rule not in ("reduction.token_weights_unequal", "ddp.uneven_microbatches"):
        return None
    step = finding.last_step  # the one that the texts of the finding are about
    window = at_step(windows, finding.optimizer, step) or next(
        iter(recent_windows(store, run.id, finding.optimizer, step, most=1)), None
    )
    verdicts = objective_verdicts(window) if window else []
    named = [v for v in verdicts if v.name == finding.evidence.get("objective")]
    verdict = next(iter([*named, *verdicts]), None)
    if window is None or verdict is None:
        return None
    rows = step_table.worst_rows(step_table.rows(window.facts, verdict))
    return evidence_svg.share_bars(
        step,
        [row.short_label for row in rows],
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
    anchor = finding_anchor(rule, optimizer_of(form))
    return redirect(f"/runs/{segment(run)}#{segment(anchor)}")


def _acknowledge(store: Store, run: str, rule: str, form: Form) -> None:
    if form.get("do") == "undo":
        return acknowledgements.remove_acknowledgement(store, run, rule)
    acknowledgements.acknowledge(store, run, rule, acknowledgement_of(form, time.time()))


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
