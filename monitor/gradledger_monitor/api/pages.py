"""The pages: reads through the store, renders through ``gradledger_web``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from gradledger_monitor import facts
from gradledger_monitor.api.access import caller
from gradledger_monitor.api.state import GivenStore
from gradledger_monitor.store import reading
from gradledger_web import assets, charts, ledgers, verdicts
from gradledger_web.formats import segment
from gradledger_web.rendering import render

router = APIRouter(include_in_schema=False)

PAGE = 50
_FOR_EVER = "public, max-age=31536000, immutable"
_HEADERS = {"Cache-Control": "no-store"}

RunId = Annotated[str, Path(min_length=1, max_length=128)]
Ordinal = Annotated[int, Path(ge=0, le=2**53)]
Index = Annotated[int, Path(ge=0, lt=4096)]


def _page(template: str, status: int = 200, **context: Any) -> HTMLResponse:
    who = caller.get()
    known = {"logged_in": who is not None and who.browser}
    return HTMLResponse(render(template, **known, **context), status, _HEADERS)


def _absent(what: str, hint: str, way: str = "/", way_text: str = "All runs") -> HTMLResponse:
    return _page("absent.html", 404, what=what, hint=hint, way=way, way_text=way_text)


def _no_run(run: str) -> HTMLResponse:
    return _absent("There is no such run", f"Nothing was ever reported under the id {run}.")


@router.get("/")
def list_runs(
    request: Request,
    store: GivenStore,
    search: str = "",
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> HTMLResponse:
    """All runs, the last seen first."""
    found = reading.list_runs(store, PAGE + 1, offset, search.strip() or None)
    return _page(
        "runs.html",
        rows=found[:PAGE],
        more=len(found) > PAGE,
        search=search,
        offset=offset,
        limit=PAGE,
        command=_command(request),
    )


def _command(request: Request) -> str:
    here = str(request.base_url).rstrip("/")
    url = "" if here in ("http://127.0.0.1:4777", "http://localhost:4777") else f"--url {here} "
    token = "GRADLEDGER_TOKEN=... " if caller.get() else ""
    return f"{token}gradledger run {url}-- python train.py"


@router.get("/runs/{run}")
def show_run(
    store: GivenStore, run: RunId, optimizer: Annotated[int, Query(ge=0, lt=4096)] = 0
) -> HTMLResponse:
    """One run: verdict, findings, tree, coverage, charts."""
    row = reading.get_run(store, run)
    if row is None:
        return _no_run(run)
    judgement = reading.judgement(store, run)
    covered = verdicts.coverage(judgement)
    return _page(
        "run.html",
        run=row,
        judgement=judgement,
        reading=verdicts.read(judgement, row.steps),
        coverage=covered,
        tally=verdicts.tally(covered),
        optimizer=optimizer,
        last_step=reading.reached(store, run).get(optimizer, 0),
        charts=charts.RUN_CHARTS,
    )


@router.get("/runs/{run}/steps")
def find_step(
    run: RunId, optimizer: Annotated[int, Query(ge=0)], step: Annotated[int, Query(ge=0)]
) -> RedirectResponse:
    """Where the form of the run page leads."""
    return RedirectResponse(f"/runs/{segment(run)}/steps/{optimizer}/{step}", 303)


@router.get("/runs/{run}/steps/{optimizer}/{step}")
def show_step(store: GivenStore, run: RunId, optimizer: Index, step: Ordinal) -> HTMLResponse:
    """The ledger of one optimizer step."""
    row = reading.get_run(store, run)
    if row is None:
        return _no_run(run)
    records = reading.step_records(store, run, optimizer, step)
    if not records:
        hint = f"No record of step {step} of optimizer {optimizer} is stored."
        return _absent("No such step", hint, f"/runs/{segment(run)}", f"Back to {row.name}")
    merged = facts.merge(reading.run_info(store, run), optimizer, step, records)
    last_step = reading.reached(store, run).get(optimizer, 0)
    return _page("step.html", run=row, last_step=last_step, **_ledger(merged))


def _ledger(merged: facts.StepFacts) -> dict[str, Any]:
    rows = ledgers.rows(merged)
    shown = ledgers.worst(rows)
    return {
        "optimizer": merged.optimizer,
        "name": merged.optimizer_name,
        "step": merged.step,
        "records": merged.records,
        "complete": merged.complete,
        "ledger": merged.ledger,
        "figures": merged.figures(),
        "rows": shown,
        "hidden": len(rows) - len(shown),
        "reading": ledgers.read(rows, merged),
        "picture": charts.shares(shown) if merged.ledger else None,
    }


@router.get("/static/{version}/{name}")
def serve_asset(request: Request, version: str, name: str) -> Response:
    """Style, scripts and plotly.js, under addresses that change with their content."""
    if name not in assets.table():
        return _absent("There is no such file", name)
    headers = {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        plain = assets.table()[name].read_bytes()
        return Response(plain, 200, headers, assets.media_type(name))
    headers |= {"Content-Encoding": "gzip"}
    return Response(assets.compressed(name), 200, headers, assets.media_type(name))
