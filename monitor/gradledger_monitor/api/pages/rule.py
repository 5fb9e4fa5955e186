"""The page of a rule, which links in messages lead to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse

from gradledger_monitor.api.pages.layout import not_found, page
from gradledger_monitor.rules import docs

router = APIRouter(include_in_schema=False)


@router.get("/rules/{rule}")
def show_rule(rule: Annotated[str, Path(max_length=128)]) -> HTMLResponse:
    """What the rule finds, why it matters, how to fix it, and when it does not apply."""
    definition = docs.rules_by_id().get(rule)
    if definition is None:
        return not_found("Rule not found", "`gradledger rules` lists all rules.")
    headline, *parts = docs.page(definition).split("\n\n")
    return page(
        "rule.html",
        rule=rule,
        headline=headline,
        parts=[(part.startswith("**"), part.strip("*").replace("``", "")) for part in parts],
        kind=docs.KINDS[definition.kind],
        fix=docs.fix(definition),
    )
