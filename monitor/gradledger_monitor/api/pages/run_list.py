"""The list of runs, the ledger of a step, and the files that pages are made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.api.middleware.origins import origin
from gradledger_monitor.api.pages.layout import RunId, absent, no_run, page
from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model import step_facts
from gradledger_monitor.model.chart_metrics import CHART_METRICS, chart_metrics
from gradledger_monitor.store.runs import listing, queries
from gradledger_monitor.store.runs.listing import SORTS, WORST_FIRST, RunFilter
from gradledger_monitor.store.steps import curves
from gradledger_web import assets, charts, progress, step_table, window_timeline
from gradledger_web.formatting import segment

router = APIRouter(include_in_schema=False)

PAGE = 50
_FOR_EVER = "public, max-age=31536000, immutable"

Ordinal = Annotated[int, Path(ge=0, le=2**53)]
Index = Annotated[int, Path(ge=0, lt=4096)]


# ------------------------------------------------------------------ runs


@router.get("/")
def list_runs(
    request: Request, store: StoreDep, offset: Annotated[int, Query(ge=0, le=2**31)] = 0
) -> HTMLResponse:
    """All runs, or those that are wanted."""
    wanted, grouped = _wanted(request.query_params), "group" in request.query_params
    offset -= offset % PAGE
    total = (listing.count_groups if grouped else listing.count_runs)(store, wanted)
    rows = [] if grouped else listing.matching_runs(store, wanted, PAGE, offset)
    ids = [row.id for row in rows]
    rates = listing.rates(store, ids)
    return page(
        "runs.html",
        rows=rows,
        groups=listing.groups(store, wanted, PAGE, offset) if grouped else [],
        grouped=grouped,
        progress={row.id: progress.progress_of(row, rates.get(row.id)) for row in rows},
        tags=listing.tags_of(store, ids),
        total=total,
        wanted=wanted,
        filtered=wanted != RunFilter(sort=wanted.sort, ascending=wanted.ascending),
        projects=listing.projects(store),
        verdicts=WORST_FIRST,
        known_tags=listing.all_tags(store),
        offset=offset,
        limit=PAGE,
        link=_linker(wanted, grouped),
        command=_command(request),
    )


def _wanted(said: Mapping[str, str]) -> RunFilter:
    words = ("search", "project", "verdict", "tag", "name")
    sort = said.get("sort", "seen")
    return RunFilter(
        **{word: said.get(word, "").replace("\0", "").strip() for word in words},
        sort=sort if sort in SORTS else "seen",
        ascending=said.get("order") == "up",
    )


def _linker(wanted: RunFilter, grouped: bool) -> Any:
    """A function that gives this page's address with some of what is wanted replaced."""
    here = {
        "search": wanted.search,
        "project": wanted.project,
        "verdict": wanted.verdict,
        "tag": wanted.tag,
        "name": wanted.name,
        "sort": wanted.sort if wanted.sort != "seen" else "",
        "order": "up" if wanted.ascending else "",
        "group": "name" if grouped else "",
    }

    def link(**other: str | int) -> str:
        said = {name: value for name, value in {**here, **other}.items() if value}
        return f"/?{urlencode(said)}" if said else "/"

    return link


def _command(request: Request) -> str:
    here = origin(request.scope)
    url = "" if here in ("http://127.0.0.1:4777", "http://localhost:4777") else f"--url {here} "
    token = "GRADLEDGER_TOKEN=... " if caller.get() else ""
    return f"{token}gradledger run {url}-- python train.py"


# ------------------------------------------------------------------ steps


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
    """Where the form of the run page leads, and a point of a chart that stands for many steps."""
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
            shown = _ledger(step_facts.merge(info, optimizer, step, records))
    except CannotEvaluate as error:
        failure = failure or str(error)
        shown = _without_ledger(info, optimizer, step, records)
    if failure is not None:
        shown["summary"] = step_table.StepSummary(
            f"{failure[:1].upper()}{failure[1:]}.", "incomplete"
        )
    return page("step.html", run=row, before=before, after=after, **shown)


def _no_step(row: queries.RunRow, optimizer: int, step: int, nearest: int | None) -> HTMLResponse:
    hint = f"No record of step {step} of optimizer {optimizer} is stored."
    way = f"/runs/{segment(row.id)}"
    if nearest is None:
        return absent("No such step", hint, way, f"Back to {row.name}")
    hint += " Of steps that take milliseconds, some are let pass; old ones are given up in time."
    return absent("No such step", hint, f"{way}/steps/{optimizer}/{nearest}", f"Step {nearest}")


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
    """What is shown of a step that cannot be evaluated: what the loop did there."""
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


# ------------------------------------------------------------------ files


@router.get("/static/{version}/{name}")
def serve_asset(request: Request, version: str, name: str) -> Response:
    """Style, scripts and plotly.js, under addresses that change with their content."""
    if name not in assets.paths():
        return absent("There is no such file", name)
    headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        plain = assets.paths()[name].read_bytes()
        return Response(plain, 200, headers, assets.media_type(name))
    headers |= {"Content-Encoding": "gzip"}
    return Response(assets.compressed(name), 200, headers, assets.media_type(name))
