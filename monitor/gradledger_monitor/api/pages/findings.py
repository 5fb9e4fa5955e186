"""The inbox: the findings of all runs, by rule; forms to acknowledge, assign and comment them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response
from pydantic import ValidationError

from gradledger_monitor.alerts.snooze import SNOOZE_PERIODS
from gradledger_monitor.api.app_state import StoreDep
from gradledger_monitor.api.forms import Form, read_form
from gradledger_monitor.api.pages.acknowledgement_form import acknowledgement_of
from gradledger_monitor.api.pages.layout import (
    RuleId,
    not_found,
    page,
    redirect,
    run_command,
)
from gradledger_monitor.api.routes.comments import CommentRequest
from gradledger_monitor.api.routes.comments import add as add_comment
from gradledger_monitor.common import clock
from gradledger_monitor.common.problems import Problem
from gradledger_monitor.model.findings import SEVERITIES
from gradledger_monitor.rules import docs
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import comments, findings_inbox, listing
from gradledger_monitor.store.runs.listing import RunFilter
from gradledger_monitor.store.runs.queries import UnknownRun

router = APIRouter(include_in_schema=False)

MOST_RUNS = 10_000  # that one form acknowledges
COMMENTS_SHOWN = 20  # of each rule, the latest ones; the API has all

FilterText = Annotated[str, Query(max_length=256)]


@dataclass(frozen=True)
class Wanted:
    """Which findings the inbox shows; an empty text is no filter."""

    search: str = ""
    severity: str = ""
    state: str = ""  # open: not acknowledged in each run; acknowledged
    assignee: str = ""

    def link(self, **changes: str) -> str:
        """The address of the inbox with some filters replaced."""
        query = {name: text for name, text in {**asdict(self), **changes}.items() if text}
        return f"/findings?{urlencode(query)}" if query else "/findings"


@router.get("/findings")
def show_findings(
    request: Request,
    store: StoreDep,
    search: FilterText = "",
    severity: FilterText = "",
    state: FilterText = "",
    assignee: FilterText = "",
) -> HTMLResponse:
    """The findings of all runs, or those that match a filter; the open ones first."""
    texts = (text.replace("\0", "").strip() for text in (search, severity, state, assignee))
    return _show(request, store, Wanted(*texts))


def _show(request: Request, store: Store, wanted: Wanted, error: str = "") -> HTMLResponse:
    now = clock.now()
    by_rule = findings_inbox.inbox(store, now, wanted.search)
    discussions = comments.discussions(store, [each.rule for each in by_rule])
    assignees = {rule: discussion.assignee for rule, discussion in discussions.items()}
    matching = [
        each
        for each in by_rule
        if wanted.state in ("", "open" if each.open else "acknowledged")
        and wanted.assignee in ("", assignees.get(each.rule))
    ]
    rules = [each for each in matching if wanted.severity in ("", each.severity)]
    names = {*assignees.values(), wanted.assignee} - {""}
    return page(
        "findings.html",
        rules=rules,
        tally={s: sum(each.severity == s for each in matching) for s in reversed(SEVERITIES)},
        latest=findings_inbox.latest_findings(store, rules, now),
        headlines=docs.headlines(),
        regressions=findings_inbox.regressions(store, [each.rule for each in rules]),
        discussions=discussions,
        assignees=sorted(names),
        comments_shown=COMMENTS_SHOWN,
        wanted=wanted,
        any_run=bool(by_rule or error) or listing.count_runs(store, RunFilter()) > 0,
        command=run_command(request),
        error=error,
        status=422 if error else 200,
        snooze_periods=SNOOZE_PERIODS,
    )


@router.post("/findings/{rule}/comments")
async def comment(request: Request, store: StoreDep, rule: RuleId) -> Response:
    """Add a comment on the findings of a rule, or assign them."""
    form = await read_form(request)
    return await run_in_threadpool(_comment, request, store, rule, form)


def _comment(request: Request, store: Store, rule: str, form: Form) -> Response:
    # the form has the assignee at the time it was loaded: only another one is an assignment
    assignee = form.get("assignee", "")
    changed = None if assignee == form.get("assigned", "") else assignee
    sent = {"text": form.get("text", ""), "by": form.get("by") or None, "assignee": changed}
    try:
        add_comment(store, rule, CommentRequest.model_validate(sent))
    except ValidationError as error:
        reasons = "; ".join(str(e["msg"]).removeprefix("Value error, ") for e in error.errors())
        return _show(request, store, Wanted(), error=f"{rule}: {reasons}.")
    except Problem:
        return not_found("Rule not found", f"There is no rule {rule}.", "/rules", "All rules")
    return redirect(f"/findings#rule-{rule}")


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
