"""The inbox: the findings of all runs, by rule, with the form that acknowledges them everywhere."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response

from gradledger_monitor.alerts.snooze import SNOOZE_PERIODS
from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.forms import Form, read_form
from gradledger_monitor.api.pages.acknowledgement_form import acknowledgement_of
from gradledger_monitor.api.pages.layout import RuleId, not_found, page, redirect
from gradledger_monitor.common import clock
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import findings_inbox
from gradledger_monitor.store.runs.queries import UnknownRun

router = APIRouter(include_in_schema=False)

MOST_RUNS = 10_000  # that one form acknowledges


@router.get("/findings")
def show_findings(
    store: StoreDep, search: Annotated[str, Query(max_length=256)] = ""
) -> HTMLResponse:
    """The findings of all runs, the open ones first."""
    search = search.replace("\0", "").strip()
    return page(
        "findings.html",
        rules=findings_inbox.inbox(store, clock.now(), search),
        search=search,
        snooze_periods=SNOOZE_PERIODS,
    )


@router.post("/findings/{rule}/acknowledgement")
async def acknowledge(request: Request, store: StoreDep, rule: RuleId) -> Response:
    """Acknowledge or snooze the findings of a rule in every run, or undo that."""
    form = await read_form(request)
    if not await run_in_threadpool(_acknowledge_in_all, store, rule, form):
        return not_found(
            "Finding not found", f"No run has a finding of {rule}.", "/findings", "All findings"
        )
    return redirect(f"/findings#rule-{rule}")


def _acknowledge_in_all(store: Store, rule: str, form: Form) -> int:
    """The number of runs that changed."""
    now, changed = clock.now(), 0
    for finding in findings_inbox.runs_with(store, rule, now, MOST_RUNS):
        undo = form.get("do") == "undo"
        if finding.acknowledged != undo:
            continue
        try:
            if undo:
                acknowledgements.remove_acknowledgement(store, finding.run, rule)
            else:
                acknowledgement = acknowledgement_of(form, now)
                acknowledgements.acknowledge(store, finding.run, rule, acknowledgement)
        except (NoSuchFinding, UnknownRun):
            continue  # resolved or deleted meanwhile
        changed += 1
    return changed
