"""The manual page of a rule, where links in messages lead."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.middleware.credentials import caller
from gradledger_monitor.rules import docs
from gradledger_web.rendering import render

router = APIRouter(include_in_schema=False)

_HEADERS = {"Cache-Control": "no-store"}


@router.get("/rules/{rule}")
def show_rule(rule: Annotated[str, Path(max_length=128)]) -> HTMLResponse:
    """What a rule sees, why it matters, what to do, and when it is silent."""
    who = caller.get()
    logged_in = who is not None and who.is_browser
    known = docs.rules_by_id().get(rule)
    if known is None:
        hint = "`gradledger rules` lists all that there are."
        absent = {
            "title": "There is no such rule",
            "hint": hint,
            "href": "/",
            "link_text": "All runs",
        }
        return HTMLResponse(render("not_found.html", logged_in=logged_in, **absent), 404, _HEADERS)
    headline, *parts = docs.page(known).split("\n\n")
    page = render(
        "rule.html",
        rule=rule,
        headline=headline,
        parts=[(part.startswith("**"), part.strip("*").replace("``", "")) for part in parts],
        kind=docs.KINDS[known.kind],
        fix=docs.fix(known),
        logged_in=logged_in,
    )
    return HTMLResponse(page, 200, _HEADERS)
