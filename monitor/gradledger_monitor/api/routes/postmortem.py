"""The post-mortem of a run as a download: the file that ``gradledger postmortem`` writes."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.middleware.origins import origin
from gradledger_monitor.api.pages.layout import HEADERS, RunId, no_run
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.render import FORMATS, html
from gradledger_monitor.store.runs.queries import UnknownRun

router = APIRouter(include_in_schema=False)

_TYPES = {"html": "text/html", "md": "text/markdown", "json": "application/json"}


@router.get("/runs/{run}/postmortem")
def postmortem(
    request: Request,
    store: StoreDep,
    run: RunId,
    form: Annotated[Literal["html", "md", "json"], Query(alias="format")] = "html",
) -> Response:
    """A download, not a page: it has inline styles, which the Content-Security-Policy forbids."""
    try:
        incident = build_incident(store, run)
    except UnknownRun:
        return no_run(run)
    url = origin(request.scope)
    text = html(incident, url) if form == "html" else FORMATS[form](incident)
    name = f"postmortem-{run}.{form}"  # an id has no characters that a header could not contain
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, 200, headers, f"{_TYPES[form]}; charset=utf-8")
